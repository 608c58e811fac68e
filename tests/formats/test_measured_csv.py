"""CSV files of measured steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.core.errors import UserError
from scalewise.formats import measured_csv
from scalewise.formats.measured_csv import MeasuredRow, read_measured_csv

HEADING = "model,devices,batch_per_device,step_seconds"


def write(path: Path, *lines: str) -> Path:
    file = path / "steps.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_rows_are_read_with_defaults_and_either_time(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "Model, devices,batch_per_device,step_seconds,samples_per_second,strategy,precision,hosts",
        "ResNet-50,1,32,0.5,,,,",
        "",
        "ResNet-50,8,32,,512,ring,bf16,2",
    )
    assert read_measured_csv(file) == [
        MeasuredRow(2, "ResNet-50", 1, 32, 0.5, "single"),
        MeasuredRow(4, "ResNet-50", 8, 32, 0.5, "ring", "bf16", 2),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADING], "has no rows"),
        (["model,devices,step_seconds", "x,1,1"], "line 1: the columns batch_per_device are missing"),
        (["model,devices,batch_per_device", "x,1,1"], "line 1: a column step_seconds or samples_per_second"),
        ([HEADING + ",speed", "x,1,1,1,1"], "unknown column in .*, line 1: 'speed'"),
        ([HEADING + ",devices", "x,1,1,1,1"], "line 1: the column devices is given twice"),
        ([HEADING, "x,1,1"], "line 2: there are 3 values for 4 columns"),
        ([HEADING, "x,1,1,1", "x,two,1,1"], "line 3: devices is 'two'; it must be a whole number of 1 or more"),
        ([HEADING, "x,0,1,1"], "line 2: devices is '0'"),
        ([HEADING, "x,1000000,1,1"], "line 2: devices is 1,000,000; at most"),
        ([HEADING, "x,1,1,nan"], "line 2: step_seconds is 'nan'; it must be a finite number above 0"),
        ([HEADING, "x,1,1,-2"], "line 2: step_seconds is '-2'"),
        ([HEADING, "x,1,1,"], "line 2: none of step_seconds and samples_per_second is given"),
        ([HEADING + ",samples_per_second", "x,1,1,1,1"], "line 2: both of step_seconds"),
        ([HEADING + ",precision", "x,1,1,1,int8"], "unknown precision in .*, line 2: 'int8'.*bf16-weights"),
        ([HEADING + ",hosts", "x,4,1,1,3"], "line 2: 4 devices cannot be divided evenly among 3 hosts"),
        ([HEADING, ",1,1,1"], "line 2: model is empty"),
    ],
)
def test_errors_name_the_line_and_the_valid_values(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_measured_csv(write(tmp_path, *lines))


def test_files_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, HEADING, *["x,1,1,1"] * 20)
    monkeypatch.setattr(measured_csv, "MOST_ROWS", 19)
    with pytest.raises(UserError, match="more than 19 rows"):
        read_measured_csv(file)
    monkeypatch.setattr(measured_csv, "LARGEST_BYTES", 20)
    with pytest.raises(UserError, match="at most 20 are read"):
        read_measured_csv(file)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match="not UTF-8"):
        read_measured_csv(binary)
    with pytest.raises(UserError, match="cannot read"):
        read_measured_csv(tmp_path / "missing.csv")
