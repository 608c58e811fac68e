"""The page about data sources has a row for every shipped data file, with its number of rows, source and licence."""

from __future__ import annotations

import csv
import gzip
import io
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.command import ROOT
from tests.docs.pages import text_of

PACKAGE = ROOT / "src" / "scalewise"
DATA = (".csv", ".gz", ".json", ".toml", ".parquet")


def shipped() -> list[str]:
    return sorted(
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file() and path.suffix in DATA
    )


def listed() -> dict[str, list[str]]:
    """Map the first column of the page's table, a path or a pattern, to the other columns."""
    rows = {}
    for line in text_of(ROOT / "docs" / "data-sources.md").splitlines():
        if line.startswith("| `"):
            path, *columns = (column.strip() for column in line.split("|")[1:-1])
            rows[path.strip("`")] = columns
    return rows


def row_count(path: Path) -> int:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return sum(1 for _ in csv.DictReader(io.StringIO(text)))


def test_every_shipped_data_file_has_a_row_with_source_and_licence() -> None:
    rows = listed()
    assert [path for path in shipped() if not any(fnmatch(path, pattern) for pattern in rows)] == []
    assert [pattern for pattern in rows if not any(fnmatch(path, pattern) for path in shipped())] == []
    assert [pattern for pattern, columns in rows.items() if len(columns) != 4 or not all(columns[1:])] == []


@pytest.mark.parametrize("path", [path for path in shipped() if ".csv" in path])
def test_tables_have_the_stated_number_of_rows(path: str) -> None:
    (columns,) = (columns for pattern, columns in listed().items() if fnmatch(path, pattern))
    assert int(columns[0].replace(",", "")) == row_count(PACKAGE / path)


def test_the_stated_number_of_clusters_is_shipped() -> None:
    assert listed()["hardware/clusters/*.toml"][0] == f"{len(list(PACKAGE.glob('hardware/clusters/*.toml')))} files"
