"""Pages opened in Chromium. `make test-browser` runs these tests; `make test` does not, as they need a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SWITCH = "SCALEWISE_BROWSER"
"""Environment variable with the path of the browser; without it nothing here is collected."""
collect_ignore_glob = [] if os.environ.get(SWITCH) else ["test_*.py"]
MOST_MILLISECONDS = 120_000
"""Longest wait for a page, a download or an element, so that a busy machine is not a failure."""
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until charts are drawn, which happens after the first layout of the page."""
DESKTOP, PHONE = (1280, 900), (390, 844)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Playwright leaves an event loop that Python reports when it exits; that is no fault of a page."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=os.environ[SWITCH], args=["--no-sandbox"], timeout=MOST_MILLISECONDS
        )
        yield chromium
        chromium.close()


class Opened:
    """A page in the browser, with what it logged and requested."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        page.set_default_timeout(MOST_MILLISECONDS)
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.evaluate(DRAWN)
        metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
        self.cpu_seconds: float = metrics["TaskDuration"]
        """Processor seconds of the page's thread until it was ready."""
        self.document: dict[str, Any] = page.evaluate("DOCUMENT")
        self.cells: list[dict[str, Any]] = page.evaluate("CELLS")

    def text(self, selector: str) -> str:
        text: str = self.page.locator(selector).first.inner_text()
        return text

    def texts(self, selector: str) -> list[str]:
        texts: list[str] = self.page.locator(selector).all_inner_texts()
        return texts

    def contents(self, selector: str) -> list[str]:
        """Texts of elements that may be part of an SVG."""
        texts: list[str] = self.page.locator(selector).all_text_contents()
        return texts

    def column(self, name: str) -> list[str]:
        """Texts of a column of the table of cells, on its current page."""
        names = self.page.eval_on_selector_all("[data-sort]", "buttons => buttons.map(b => b.dataset.sort)")
        return self.texts(f"[data-table=cells] tbody tr td:nth-child({names.index(name) + 1})")


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Return a function that opens a file; afterwards check that it logged nothing and requested nothing else."""
    opened: list[tuple[Opened, Path]] = []

    def open_it(path: Path, size: tuple[int, int] = DESKTOP, theme: Any = "light") -> Opened:
        page = browser.new_page(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=theme,
            reduced_motion="reduce",  # otherwise a click may come while the page still scrolls
            accept_downloads=True,
        )
        opened.append((Opened(page, path), path))
        return opened[-1][0]

    yield open_it
    for one, path in opened:
        one.page.close()
        assert one.problems == []
        assert [url for url in one.requests if not url.startswith("blob:")] == [path.as_uri()]


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the script of axe-core, which `tests.browser.prepare` fetched."""
    from tests.browser.prepare import AXE

    if not AXE.exists():
        pytest.skip("axe-core could not be fetched from npm")
    return AXE.read_text()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder for pages; SCALEWISE_PAGES names one that is kept."""
    kept = os.environ.get("SCALEWISE_PAGES")
    path = Path(kept).absolute() if kept else tmp_path_factory.mktemp("pages")
    path.mkdir(parents=True, exist_ok=True)
    yield path
    if not kept:
        shutil.rmtree(path)
