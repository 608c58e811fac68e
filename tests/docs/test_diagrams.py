"""The page of strategies shows a diagram of each strategy, drawn from its plan and a simulated step."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from website.diagrams import FOLDER, diagram_of, schematic_profile

from scalewise.formats.profile import ProfileDocument
from scalewise.strategies.registry import STRATEGIES, strategy_of
from tests.command import ROOT
from tests.docs.pages import text_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def profile() -> ProfileDocument:
    return schematic_profile()


def test_every_strategy_has_a_diagram_in_its_section() -> None:
    page = text_of(ROOT / "docs" / "strategies.md")
    sections = re.findall(r"^### ([a-z-]+)\n.*?\]\(images/([a-z-]+)\.svg\)", page, flags=re.DOTALL | re.MULTILINE)
    assert sorted(sections) == sorted((name, name) for name in STRATEGIES)
    assert {path.stem for path in FOLDER.glob("*.svg")} >= set(STRATEGIES)


def texts_of(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_diagram_names_the_ranks_and_shows_the_bytes_of_the_plan(profile: ProfileDocument) -> None:
    texts = texts_of(diagram_of(strategy_of("ring"), profile))
    assert [text for text in texts if text.startswith("device ")] == [f"device {rank}" for rank in range(4)]
    megabytes = 2 * profile.parameter_bytes * 3 / 4 / 2**20
    assert f"each arrow: {megabytes:.1f} MiB" in texts


def test_servers_and_host_memory_are_ranks_of_their_own(profile: ProfileDocument) -> None:
    assert "server" in texts_of(diagram_of(strategy_of("parameter-server"), profile))
    assert "host memory" in texts_of(diagram_of(strategy_of("central-storage"), profile))
