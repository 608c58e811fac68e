"""The wheel holds the package with its data files and type information, and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.command import ROOT

SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    builders = pytest.importorskip("hatchling.builders.wheel")
    folder = tmp_path_factory.mktemp("dist")
    [path] = builders.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    [path] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    package = {
        path.relative_to(SOURCE).as_posix(): path.stat().st_size
        for path in (SOURCE / "scalewise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {file.filename: file.file_size for file in wheel.infolist() if ".dist-info/" not in file.filename}
    assert packed == package
    assert "scalewise/py.typed" in packed
    assert {Path(name).suffix for name in packed} >= {".py", ".toml", ".csv", ".gz", ".json"}


def test_the_metadata_names_the_command_and_the_extras(wheel: zipfile.ZipFile) -> None:
    assert "scalewise = scalewise.cli:main" in metadata(wheel, "entry_points.txt")
    lines = metadata(wheel, "METADATA").splitlines()
    assert "Name: scalewise" in lines
    assert {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra")} >= {
        "pandas",
        "zoo",
    }
    assert not any(line.startswith("Requires-Dist: pytest") for line in lines)
