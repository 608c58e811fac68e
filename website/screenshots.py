"""Take the screenshots of the report in docs/images: `make screenshots` (Chromium as for `make test-browser`)."""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from scalewise.advice.advise import advise
from scalewise.probe.untimed_profile import outline_of
from scalewise.reporting.report import report
from scalewise.sweep.measure import measure

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DESKTOP, PHONE = (1280, 1180), (390, 844)
GAP = 24
"""Pixels between images beside each other."""
CLUSTERS = ("8x-v100-nvlink", "4x-rtx-3090-nvlink", "8 x v100-nvlink, 4 hosts, 100gbe")


def shot(browser: Browser, page: Path, size: tuple[int, int], theme: Any, sections: Sequence[str] = ()) -> Image.Image:
    """Return an image of the top of a page, or of some sections below each other."""
    tab = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready=yes]")
    tab.evaluate("document.fonts.ready")
    images = [tab.locator(f"#{name}").screenshot() for name in sections] or [tab.screenshot()]
    tab.close()
    return joined([Image.open(io.BytesIO(image)) for image in images], across=False)


def joined(images: Sequence[Image.Image], across: bool) -> Image.Image:
    """Put images beside or below each other on white."""
    if len(images) == 1:
        return images[0]
    sizes = [image.size if across else image.size[::-1] for image in images]
    length, width = sum(size[0] for size in sizes) + GAP * (len(images) - 1), max(size[1] for size in sizes)
    whole = Image.new("RGB", (length, width) if across else (width, length), "white")
    at = 0
    for image, (along, _) in zip(images, sizes, strict=True):
        whole.paste(image, (at, 0) if across else (0, at))
        at += along + GAP
    return whole


def save(image: Image.Image, name: str) -> None:
    path = IMAGES / f"{name}.png"
    image.convert("RGB").save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB", file=sys.stderr)


def main(browser_path: str) -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        study = report(published=True, out=folder / "study").files[0]
        epochs: dict[str, Any] = {"step_time": "0.062@32", "batch": [256, 512], "samples": 1_281_167}
        advice, step = folder / "advice.html", folder / "step.html"
        advise("ResNet-50", cluster=CLUSTERS, epochs=90, **epochs).write_report(advice)
        advise("ResNet-50", cluster="4x-rtx-3090-nvlink", step_time="0.062@32", batch=[64]).write_report(step)
        cells: dict[str, Any] = {"strategy": ["single", "mirrored"], "devices": [1, 2], "batch": 100}
        measure("linear", out=folder / "sweep", device_kind="cpu", budget=5.0, **cells)
        measured = report(folder / "sweep", outline=outline_of).files[0]
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        save(shot(browser, study, DESKTOP, "light"), "report-study")
        save(shot(browser, advice, DESKTOP, "dark"), "report-advice")
        sections = [shot(browser, measured, DESKTOP, "light", ["timeline"])]
        sections.append(shot(browser, step, DESKTOP, "light", ["topology"]))
        save(joined(sections, across=False), "report-step")
        looks = [(study, "light"), (study, "dark"), (advice, "dark")]
        save(joined([shot(browser, page, PHONE, theme) for page, theme in looks], across=True), "report-phone")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
