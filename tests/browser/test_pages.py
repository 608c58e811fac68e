"""Real reports in Chromium: what a reader does with them, and that the numbers on the screen are those of the data."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scalewise.advice.advise import advise
from scalewise.predict.predictor import Predictor
from scalewise.reporting.html_page import notebook_html, write_page
from scalewise.reporting.page_json import page_of_advice
from scalewise.reporting.report import report
from scalewise.reporting.step_picture import step_picture
from tests.browser.conftest import MOST_MILLISECONDS, PHONE, Open, Opened
from tests.reporting.example_pages import (
    AWKWARD,
    DISCONTINUED,
    MACHINE,
    advice_document,
    awkward_page,
    grid,
    grid_page,
    many_cells,
    page_of,
    timed,
    tune_page,
)
from tests.reporting.test_report import stored

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SECONDS_TO_OPEN = 3.0
"""Processor time in which a page with 10,000 cells opens, so that other processes of the machine do not count."""
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="session")
def study(folder: Path) -> Path:
    """The 96 published cells with predictions beside them, written by `report --published`."""
    result = report(published=True, out=folder / "study")
    assert result.files[0] == folder / "study" / "report.html"
    return result.files[0]


@pytest.fixture(scope="session")
def sweep(folder: Path) -> Path:
    return write_page(folder / "sweep.html", grid_page())


@pytest.fixture(scope="session")
def measured_folder(folder: Path) -> Path:
    """A folder of measurements reported by `report`."""
    return report(stored(folder / "measured", MACHINE, grid())).files[0]


@pytest.fixture(scope="session")
def advice(folder: Path) -> Path:
    """Advice that compares three clusters, with timelines of the first one's rows."""
    result = advise("ResNet-50", step_time="0.062@32", cluster="8x-v100-nvlink", batch=[256, 512], samples=1_281_167)
    predictor = Predictor(result.profile, result.cluster)
    pictures = {
        number: step_picture(predictor, row.prediction.strategy, row.prediction.devices, row.prediction.batch)
        for number, row in enumerate(result.rows)
        if row.fits
    }
    return write_page(folder / "advice.html", page_of_advice(advice_document(), pictures))


@pytest.fixture(scope="session")
def tuning(folder: Path) -> Path:
    return write_page(folder / "tuning.html", tune_page())


def lines(opened: Opened, chart: str = "speedup", card: int = 0) -> int:
    """Number of lines of measured or predicted values that a chart draws."""
    drawn: int = opened.page.locator(f"[data-chart={chart}]").nth(card).locator("svg g[data-mark=dot] circle").count()
    return drawn


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


def test_numbers_on_the_screen_are_those_of_the_data(study: Path, open_page: Open) -> None:
    opened = open_page(study)
    assert opened.text(".verdict .number") == "3.76x"
    best = max((cell for cell in opened.cells if cell["devices"] > 1), key=lambda cell: cell["speedup"])
    assert (best["workload"], best["devices"], best["batch"]) == ("conv", 4, 50)
    assert opened.text(".verdict .number") == f"{best['speedup']:.2f}x"
    opened.page.select_option("[aria-label='Rows per page']", "100")
    assert [float(text.rstrip("x")) for text in opened.column("speedup")] == pytest.approx(
        [cell["speedup"] for cell in opened.cells], abs=0.005
    )
    assert [int(text) for text in opened.column("batch")] == [cell["batch"] for cell in opened.cells]
    details = opened.page.locator("[data-chart=speedup] details").first
    details.locator("summary").click()
    details.locator("tbody tr").first.wait_for()
    rows = [row.split("\t") for row in details.locator("tbody tr").all_inner_texts()]
    assert len(rows) == 36
    cell = next(c for c in opened.cells if (c["workload"], c["devices"], c["batch"]) == ("linear", 3, 70))
    [row] = [row for row in rows if row[:2] == ["3", "batch 70"]]
    assert (row[2], row[4]) == (f"{cell['speedup']:.2f}x", f"{cell['predicted_speedup']:.2f}x")


def test_a_line_is_switched_off_and_on(study: Path, open_page: Open) -> None:
    opened = open_page(study)
    button = opened.page.locator("[data-chart=speedup]").first.get_by_role("button", name="batch 600")
    assert button.get_attribute("aria-pressed") == "true"
    before = lines(opened)
    button.click()
    assert (lines(opened), button.get_attribute("aria-pressed")) == (before - 3, "false")
    button.press("Enter")
    assert (lines(opened), button.get_attribute("aria-pressed")) == (before, "true")


def test_scaling_is_switched_to_weak(study: Path, open_page: Open) -> None:
    opened = open_page(study)
    assert "Strong scaling" in opened.text("[data-chart=speedup] figcaption p")
    opened.page.get_by_role("button", name="Weak scaling", exact=True).click()
    assert "Weak scaling: throughput relative to one device" in opened.text("[data-chart=speedup] figcaption p")
    details = opened.page.locator("[data-chart=speedup] details").nth(1)
    details.locator("summary").click()
    details.locator("tbody tr").first.wait_for()
    rows = [row.split("\t") for row in details.locator("tbody tr").all_inner_texts()]
    weak = {
        (str(cell["devices"]), f"batch/device {cell['weak_batch']}"): f"{cell['weak']:.2f}x"
        for cell in opened.cells
        if cell["workload"] == "conv" and cell["devices"] > 1 and cell["weak"] is not None
    }
    assert {(row[0], row[1]): row[2] for row in rows} == weak


def test_the_table_sorts_in_both_directions_and_filters(study: Path, open_page: Open) -> None:
    opened = open_page(study)
    heading = opened.page.locator("[data-sort=epoch]")
    heading.click()
    ordered = sorted(cell["epoch"] for cell in opened.cells)
    assert opened.column("epoch")[0] == f"{1000 * ordered[0]:.3g} ms"
    assert opened.page.locator("th[aria-sort=ascending]").inner_text().startswith("epoch")
    heading.click()
    assert opened.column("epoch")[0] == f"{ordered[-1]:.3g} s"
    opened.page.fill("input[type=search]", "conv 4")
    assert set(opened.column("workload")) == {"conv"}
    assert "of 96" not in opened.text(".pager [role=status]")
    opened.page.get_by_role("button", name="Next").click()
    assert opened.page.locator("[data-table=cells] tbody tr").count() > 0


def test_the_csv_has_every_cell(study: Path, open_page: Open) -> None:
    opened = open_page(study)
    with opened.page.expect_download() as download:
        opened.page.click("[data-download=csv]")
    rows = csv_rows(download.value.path())
    assert [(row["workload"], int(row["batch"])) for row in rows] == [(c["workload"], c["batch"]) for c in opened.cells]
    assert [float(row["epoch"]) for row in rows] == [cell["epoch"] for cell in opened.cells]
    measured = [row for row in rows if row["devices"] == "4"]
    assert all(float(row["predicted_backward_seconds"]) > 0 for row in measured)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_follows_the_system_and_its_switch(study: Path, open_page: Open, theme: str) -> None:
    opened = open_page(study, theme=theme)
    background = "getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 25)"}
    other = "dark" if theme == "light" else "light"
    assert opened.page.evaluate(background) == colours[theme]
    opened.page.get_by_role("button", name=f"{other} theme".capitalize()).click()
    assert opened.page.evaluate(background) == colours[other]


def test_a_cells_timeline_shows_measured_above_predicted(measured_folder: Path, sweep: Path, open_page: Open) -> None:
    assert "cells" in open_page(measured_folder).document
    opened = open_page(sweep)
    opened.page.select_option("[aria-label='Rows per page']", "100")
    number = next(
        c["number"]
        for c in opened.cells
        if (c["strategy"], c["devices"], c["batch"]) == ("ring", 2, 40) and c["phases"]
    )
    opened.page.locator(f"tr[data-cell='{number}'] button").click()
    cell = opened.cells[number]
    assert opened.text("[data-chart=timeline] h3") == "linear, ring, 2 devices, batch 40"
    titles = [text for text in opened.contents("[data-chart=timeline] svg text") if text in ("Measured", "Predicted")]
    assert titles == ["Measured", "Predicted"]
    reduce = opened.document["phases"].index("reduce")
    tips = opened.page.eval_on_selector_all(
        "[data-chart=timeline] rect[data-phase=reduce]", "spans => spans.map(span => span.dataset.tip)"
    )
    assert f"for {1000 * cell['phases'][reduce]:.3g} ms" in tips[0]
    names = opened.contents("[data-chart=timeline] svg text")
    assert {"slowest device", "device 0", "device 1", "device 0, transfers"} <= set(names)
    mirrored = next(c["number"] for c in opened.cells if (c["strategy"], c["devices"]) == ("mirrored", 2))
    opened.page.locator(f"tr[data-cell='{mirrored}'] button").click()
    names = opened.contents("[data-chart=timeline] svg text")
    assert [names.count(name) for name in ("slowest device", "device 1", "device 1, transfers")] == [0, 2, 2]
    assert "One measured step is shown" in opened.text("[data-chart=timeline] figcaption p")
    first = opened.page.locator("[data-chart=timeline] rect[data-phase=forward]").first
    before = float(first.get_attribute("width") or 0)
    opened.page.locator("[data-chart=timeline]").get_by_role("button", name="Zoom in").click()
    opened.page.wait_for_function(
        "width => document.querySelector('#timeline rect[data-phase=forward]').width.baseVal.value != width",
        arg=before,
    )


def test_a_click_on_a_point_opens_its_timeline(study: Path, open_page: Open) -> None:
    opened = open_page(study)
    point = (
        opened.page.locator("[data-chart=epoch]").nth(1).locator("svg g[data-mark=dot]").nth(2).locator("circle").last
    )
    point.scroll_into_view_if_needed()
    point.hover()
    point.click()
    assert re.fullmatch(
        r"conv, data-parallel:engine=threads, \d devices, batch 600", opened.text("[data-chart=timeline] h3")
    )


def test_a_chart_zooms_and_resets(study: Path, open_page: Open) -> None:
    opened = open_page(study)
    card = opened.page.locator("[data-chart=epoch]").nth(1)
    texts = "svg => [...svg.querySelectorAll('text')].map(text => text.textContent)"
    before = card.locator(".plot > svg").first.evaluate(texts)
    box = card.locator(".plot").bounding_box()
    assert box is not None
    card.locator(".plot").scroll_into_view_if_needed()
    box = card.locator(".plot").bounding_box()
    assert box is not None
    opened.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.8 * box["height"], steps=4)
    opened.page.mouse.up()
    assert card.locator(".plot > svg").first.evaluate(texts) != before
    card.get_by_role("button", name="Reset zoom").click()
    assert card.locator(".plot > svg").first.evaluate(texts) == before


def test_links_are_coloured_by_their_use(advice: Path, open_page: Open) -> None:
    opened = open_page(advice)
    detail = next(c for c in opened.cells if c["strategy"] == "mirrored" and c["devices"] == 8)["detail"]
    shape = opened.document["topologies"][opened.document["details"][detail]["topology"]]
    assert opened.contents("[data-chart=topology] svg text").count("device 7 · 94%") == 1
    link = shape["hosts"][0]["links"][0]
    use = opened.document["details"][detail]["use"][link["ends"][0]] / 1000
    drawn = opened.page.eval_on_selector_all(
        "[data-chart=topology] line[data-use]",
        "wires => wires.map(wire => [+wire.dataset.use, wire.getAttribute('stroke')])",
    )
    assert [use, "var(--use1)"] in drawn
    assert any(
        f"nvlink, 20 GB/s · busy {use:.0%}" in text for text in opened.contents("[data-chart=topology] svg text")
    )


def test_advice_compares_three_clusters(advice: Path, open_page: Open) -> None:
    opened = open_page(advice)
    assert opened.text(".verdict .sentence") == opened.document["verdict"]["sentence"]
    rows = [row.split("\t") for row in opened.texts("[data-table=comparison] tbody tr")]
    for row, entry in zip(rows, opened.document["comparison"], strict=True):
        assert row[0].splitlines()[0] == entry["cluster"]
        time, interval = row[4].splitlines()
        assert time == f"{entry['time'] / 3600:.3g} h"
        assert interval == f"{entry['time_low'] / 3600:.3g} to {entry['time_high'] / 3600:.3g} h"
        cost = row[5].splitlines()[0]
        assert cost in (f"${entry['cost']:.0f}", f"${entry['cost']:,.0f}", f"${entry['cost']:.2f}")
    assert ["recommended" in row[0] for row in rows] == [True, False, False]
    assert f"The sections below are about {opened.document['cluster']}." in opened.text("#comparison .lead")


def test_a_notebook_shows_the_page(folder: Path, browser: Browser) -> None:
    path = folder / "output.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8>{notebook_html(grid_page(), 'the text')}")
    page = browser.new_page()
    page.set_default_timeout(MOST_MILLISECONDS)
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=yes]").wait_for()
    frame.locator("[data-chart=speedup] svg").wait_for()
    assert frame.locator("[data-chart=speedup] svg").count() == 1
    assert page.locator("details pre").text_content() == "the text"
    page.close()


def test_tuning_marks_the_recommended_trial(tuning: Path, open_page: Open) -> None:
    opened = open_page(tuning)
    bars = opened.texts("#tuning .bars .row")
    assert "compile, channels-last\nrecommended" in bars[2]
    assert "29 ms" in bars[2]
    assert "changes the training result" in bars[3]
    assert "the model synchronises with the host" in opened.text("#tuning table")
    assert "scalewise train unet --batch 32" in opened.text("#tuning code")


def test_awkward_names_are_text(folder: Path, open_page: Open) -> None:
    opened = open_page(write_page(folder / "awkward.html", awkward_page()))
    assert opened.page.title().startswith("</script><script>alert('x')")
    assert AWKWARD.replace("\u2028", "")[:40] in opened.text("h1")
    assert set(opened.page.evaluate("CELLS.map(cell => cell.workload)")) == {AWKWARD, DISCONTINUED}
    assert opened.page.locator("main script, main b:has-text('bold')").count() == 0
    opened.page.locator("[data-chart=speedup] details summary").first.click()
    with opened.page.expect_download() as download:
        opened.page.click("[data-download=csv]")
    rows = csv_rows(download.value.path())
    assert rows[0]["workload"] == AWKWARD
    assert {row["workload"] for row in rows} == {AWKWARD, f"'{DISCONTINUED}"}  # no formula in a spreadsheet


def test_one_cell_and_failed_cells_open(folder: Path, open_page: Open) -> None:
    one = open_page(write_page(folder / "one.html", page_of([timed("single", 1, 20, 0.04)])))
    assert one.column("epoch") == ["4 s"]
    assert one.text("[data-chart=timeline] h3") == "linear, single, 1 device, batch 20"
    failed = [cell for cell in grid() if cell.status == "oom"]
    none = open_page(write_page(folder / "failed.html", page_of(failed)))
    assert none.text(".verdict .sentence") == "No cell could be timed: 1 oom."
    assert none.column("reason") == ["rank 1: full"]
    assert none.page.eval_on_selector_all("main > section", "all => all.map(one => one.id)") == [
        "verdict",
        "cells",
        "environment",
    ]


def test_10000_cells_open_within_3_seconds(folder: Path, open_page: Open) -> None:
    opened = open_page(write_page(folder / "many.html", page_of(many_cells(10_000))))
    assert len(opened.cells) == 10_000
    assert opened.page.locator("[data-table=cells] tbody tr").count() == 25
    assert opened.cpu_seconds < SECONDS_TO_OPEN
    opened.page.locator("[data-sort=epoch]").click()
    assert opened.page.locator("th[aria-sort=ascending]").count() == 1


@pytest.mark.parametrize("name", ["study", "sweep", "advice", "tuning"])
def test_a_phone_shows_it_without_scrolling_sideways(
    name: str, request: pytest.FixtureRequest, open_page: Open
) -> None:
    opened = open_page(request.getfixturevalue(name), size=PHONE)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_the_keyboard_reaches_every_control(sweep: Path, open_page: Open) -> None:
    opened = open_page(sweep)
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.className") == "skip"
    controls = "main button, main select, main input, main summary, #theme, nav a"
    assert opened.page.eval_on_selector_all(controls, "all => all.every(one => one.tabIndex === 0 || one.disabled)")
    opened.page.locator("[data-chart=timeline] .plot").focus()
    opened.page.keyboard.press("+")
    first = "document.querySelector('[data-chart=timeline] rect[data-phase]').width.baseVal.value"
    width = opened.page.evaluate(first)
    opened.page.keyboard.press("+")
    opened.page.wait_for_function(f"width => {first} > width", arg=width)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["study", "sweep", "advice", "tuning"])
def test_axe_finds_nothing_serious(
    name: str, theme: str, request: pytest.FixtureRequest, open_page: Open, axe: str
) -> None:
    opened = open_page(request.getfixturevalue(name), theme=theme)
    opened.page.evaluate(axe)
    result: dict[str, Any] = opened.page.evaluate("axe.run()")
    serious = [
        (finding["id"], [node["html"][:160] for node in finding["nodes"][:3]])
        for finding in result["violations"]
        if finding["impact"] in SERIOUS
    ]
    assert serious == [], json.dumps(serious, indent=1)
    assert len(result["passes"]) > 15
