"""Links of the pages lead to files and headings that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, anchors_of, links_of, name_of


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in links_of(page):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors_of(path)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_and_anchors_exist(page: Path) -> None:
    assert not broken_links(page)


def test_a_missing_file_and_a_missing_heading_are_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Some, heading\n[a](gone.md) [b](#some-heading) [c](#other) [d](https://example.org/#x)\n")
    assert broken_links(page) == ["gone.md", "#other"]
