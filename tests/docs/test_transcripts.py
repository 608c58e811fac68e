"""Transcripts in the pages are what the commands print; Python blocks can be compiled, and the README's runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ROOT, Run, in_process
from tests.docs.pages import Block, blocks_of, current_pages, name_of, transcripts_of
from tests.docs.transcripts import agrees, working_folder

WITH_TRANSCRIPTS = [page for page in current_pages() if transcripts_of(page)]
PYTHON = [block for page in current_pages() for block in blocks_of(page) if block.language == "python"]


@pytest.fixture
def scalewise(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    return in_process(capfd, monkeypatch)


@pytest.mark.parametrize("page", WITH_TRANSCRIPTS, ids=name_of)
def test_transcripts_are_what_the_commands_print(
    page: Path, scalewise: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    working_folder(page, folder)
    monkeypatch.chdir(folder)
    for transcript in transcripts_of(page):
        output = scalewise(*transcript.arguments)
        assert output.code == 0, output.stderr
        assert agrees(transcript.arguments, transcript.expected or (), output.stdout), (
            f"{transcript} differs (`make transcripts` writes it again):\n{output.stdout}"
        )


def test_the_readme_has_a_transcript() -> None:
    assert ROOT / "README.md" in WITH_TRANSCRIPTS


def test_a_difference_is_detected() -> None:
    assert agrees(("advise",), ("Stay on one T4.", "...", "batch 10"), "Stay on one T4.\n\nwhy\nhow\nbatch 10\n\n")
    assert not agrees(("advise",), ("Stay on one T4.", "batch 10"), "Stay on one T4.\nbatch 11\n")
    assert not agrees(("advise",), ("Stay on one T4.", "...", "batch 10"), "Stay on one T4.\nbatch 10\nmore")
    assert agrees(("train",), ("step  1.2 ms", "forward 3 ms ####"), "step 11 s\nforward  8 s #\n")
    assert agrees(("train",), ("step  1.2 ms", "..."), "step 11 s\nnote: a rank is slow\n")
    assert not agrees(("train",), ("step  1.2 ms", "forward 3 ms"), "step 11 s\nbackward 3 ms\n")


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"{block.page}:{block.line}")
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, f"{block.page}:{block.line}", "exec")


@pytest.mark.slow
def test_the_python_block_of_the_readme_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    (block,) = (block for block in PYTHON if block.page == "README.md")
    exec(compile(block.text, "README.md", "exec"), {})
    assert "mirrored on 2 " in capsys.readouterr().out
