"""A folder of measurements: `measurements.jsonl`, a line per cell, and `environment.json`."""

from __future__ import annotations

import os
from collections.abc import Hashable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from scalewise.errors import RunFailed, UserError, in_our_words
from scalewise.results.environment import FILE as ENVIRONMENTS
from scalewise.results.environment import Environment, read_environments, write_environments
from scalewise.results.lock import sole_writer
from scalewise.results.measurement import SCHEMA, Measurement

FILE = "measurements.jsonl"


class Store:
    """`with Store(folder) as store: store.append(measurement)`: on the disk when `append` returns.

    Open, it is the only writer of its folder, which is made if it is not there. To read needs no lock: `Store.read`.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._file: BinaryIO | None = None
        self._held = ExitStack()
        self._made: list[Path] = []
        """Folders and files that were not there before, the outermost first."""
        self._latest: dict[Hashable, Measurement] = {}
        self._environments: dict[str, Environment] = {}

    @staticmethod
    def read(*folders: Path | str) -> list[Measurement]:
        """The latest measurement of every cell of each folder, in the order they were made.

        Cells of different folders are kept apart: they may come from different machines.
        """
        found: list[Measurement] = []
        for folder in map(Path, folders):
            path = folder / FILE
            if not path.is_file():
                raise UserError(
                    f"no measurements in {folder}: there is no {FILE}; make some with: scalewise measure --out {folder}"
                )
            found += _latest(_read(path)[0]).values()
        return found

    @staticmethod
    def environments(*folders: Path | str) -> dict[str, Environment]:
        """By the id that measurements name; a UserError where one of them is not there."""
        found: dict[str, Environment] = {}
        for folder in map(Path, folders):
            known = read_environments(folder)
            named = {each.environment for each in _read(folder / FILE)[0]} if (folder / FILE).is_file() else set()
            if missing := sorted(named - set(known)):
                raise UserError(
                    f"{folder / ENVIRONMENTS} {f'lacks {missing[0]}' if known else 'is missing or empty'}, and "
                    f"{folder / FILE} names by it what was measured on which machine; copy the one that belongs to it"
                )
            found |= known
        return found

    @property
    def measurements(self) -> list[Measurement]:
        """The latest of every cell, those found on opening and those appended since."""
        return list(self._latest.values())

    def __enter__(self) -> Store:
        path = self.folder / FILE
        mine = [*reversed(self.folder.parents), self.folder, path, self.folder / ENVIRONMENTS]
        self._made = [each for each in mine if not each.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self.folder}: {error.strerror}") from None
        with ExitStack() as held:
            held.callback(self._leave_nothing_empty, folders=True)
            held.enter_context(sole_writer(self.folder))
            held.callback(self._leave_nothing_empty, folders=False)  # while nobody else writes there
            self._environments = read_environments(self.folder)
            self._latest = {}
            if path.exists():
                lines, whole_bytes, complete = _read(path)
                self._latest = _latest(lines)
                _repair(path, whole_bytes, complete)
            try:
                self._file = held.enter_context(path.open("ab", buffering=0))
                _flush_folder(self.folder)
            except OSError as error:
                raise RunFailed(f"cannot write {path}: {error.strerror}") from error
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._file = None
        self._held.close()

    def _leave_nothing_empty(self, folders: bool) -> None:
        """What was made for a sweep that came to nothing goes again."""
        if not self._latest:
            for each in reversed(self._made):
                with suppress(OSError):  # not there, or a folder that others use by now
                    if each.is_dir() == folders:
                        each.rmdir() if folders else each.unlink()

    def append(self, measurement: Measurement) -> None:
        """Whole or not at all, and on the disk."""
        assert self._file is not None
        if measurement.environment not in self._environments:
            raise KeyError(f"environment {measurement.environment} is not in the store; add it first")
        line = measurement.to_line()
        before = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(before)
            raise RunFailed(f"cannot write {self.folder / FILE}: {error.strerror}") from error
        self._latest.pop(measurement.identity, None)
        self._latest[measurement.identity] = measurement

    def add_environment(self, environment: Environment) -> str:
        """Its id, for measurements to name."""
        if environment.id not in self._environments:
            self._environments[environment.id] = environment
            write_environments(self.folder, self._environments)
        return environment.id


def _latest(measurements: list[Measurement]) -> dict[Hashable, Measurement]:
    latest: dict[Hashable, Measurement] = {}
    for each in measurements:
        latest.pop(each.identity, None)  # so that it moves to the end
        latest[each.identity] = each
    return latest


def _read(path: Path) -> tuple[list[Measurement], int, bool]:
    """All whole lines, the bytes they take, and whether the last of them has its line end.

    What a kill cut off has none: it is left out, unless only the line end is missing.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    *lines, rest = content.split(b"\n")
    measurements = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
    if not rest:
        return measurements, len(content), True
    try:
        return [*measurements, Measurement.from_line(rest)], len(content), False
    except ValueError:
        return measurements, len(content) - len(rest), True


def _parse(path: Path, number: int, line: bytes) -> Measurement:
    try:
        return Measurement.from_line(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if where == "schema":
            raise UserError(
                f"{path}, line {number}: schema is {first['input']!r}, this Scalewise reads {SCHEMA}; "
                "update it to read the file"
            ) from None
        raise UserError(
            f"{path}, line {number} is not a measurement: {f'{where}: ' if where else ''}{in_our_words(first['msg'])}; "
            "mend the line or remove it"
        ) from None


def _repair(path: Path, whole_bytes: int, complete: bool) -> None:
    with path.open("r+b") as file:
        file.truncate(whole_bytes)
        if not complete:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """A new file's name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
