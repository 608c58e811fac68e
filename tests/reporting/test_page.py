"""The page of a report: data, escaping, size, and that it needs nothing but itself."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from scalewise.advice.advise import advise
from scalewise.core.statistics import Interval
from scalewise.core.timeline import MOST_SPANS, PHASES, Lane, RecordedStep
from scalewise.formats.store import Measurement
from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.finding import ExperimentResult
from scalewise.reporting.html_page import SCRIPTS, html_of, json_in_html
from scalewise.reporting.page_cells import predict_cells
from scalewise.reporting.page_json import Page, page_of_advice, page_of_measurements, page_of_tuning, with_cells
from scalewise.reporting.report import with_page
from tests.reporting.example_pages import (
    AWKWARD,
    MACHINE,
    SAMPLES,
    advice_document,
    awkward_page,
    grid,
    grid_page,
    many_cells,
    outline,
    page_of,
    timed,
    tune_document,
)


class Parsed(HTMLParser):
    """Elements, text and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            if self._open[-1] == "script":
                self.scripts.append(data)
        else:
            self.texts.append(data)

    @property
    def document(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.scripts[0])
        return result

    def ids(self, tag: str) -> list[str]:
        return [str(attributes["id"]) for name, attributes in self.tags if name == tag and "id" in attributes]


def cells_of(page: Page) -> list[dict[str, Any]]:
    return [dict(zip(page["cells"]["columns"], row, strict=True)) for row in page["cells"]["rows"]]


@pytest.fixture(scope="module")
def measured_page() -> Page:
    return grid_page()


def test_measured_numbers_and_speedups_are_in_the_data(measured_page: Page) -> None:
    cells = cells_of(Parsed(html_of(measured_page)).document)
    [cell] = [cell for cell in cells if (cell["strategy"], cell["devices"], cell["batch"]) == ("ring", 4, 80)]
    step, one = 1.2 * (0.025 + 0.001 * 80 / 4), 0.02 + 0.001 * 80
    steps = SAMPLES / 80
    assert cell["step"] == pytest.approx(step)
    assert (cell["step_low"], cell["step_high"]) == pytest.approx((0.98 * step, 1.03 * step))
    assert cell["epoch"] == pytest.approx(steps * step)
    assert cell["speedup"] == pytest.approx(one / step, rel=1e-4)
    assert cell["speedup_low"] < cell["speedup"] < cell["speedup_high"]
    assert cell["weak_batch"] == 20
    assert cell["weak"] == pytest.approx(4 * (0.02 + 0.001 * 20) / step, rel=1e-4)
    assert cell["phases"][PHASES.index("reduce")] == pytest.approx(0.2 * step)


def test_predictions_stand_beside_measurements_of_several_devices(measured_page: Page) -> None:
    cells = cells_of(measured_page)
    predicted = [cell for cell in cells if cell["predicted_epoch"] is not None]
    assert {cell["devices"] for cell in predicted} == {2, 4}
    assert len(predicted) == 24
    for cell in predicted:
        assert cell["predicted_epoch_low"] < cell["predicted_epoch"] < cell["predicted_epoch_high"]
        assert cell["predicted_speedup"] * cell["predicted_epoch"] == pytest.approx(
            cell["speedup"] * cell["epoch"], rel=1e-4
        )
        assert sum(cell["predicted_phases"]) == pytest.approx(cell["predicted_step"], rel=1e-3)
    assert measured_page["accuracy"]["cells"] == 24
    assert "fitted to the other half of the batches" in measured_page["notes"][0]


def test_every_predicted_cell_has_a_timeline_and_the_use_of_its_links(measured_page: Page) -> None:
    host = next(shape["hosts"][0] for shape in measured_page["topologies"] if len(shape["hosts"][0]["devices"]) == 4)
    for cell in cells_of(measured_page):
        if cell["detail"] is None:
            continue
        detail = measured_page["details"][cell["detail"]]
        timeline = detail["timeline"]
        assert timeline["seconds"] == pytest.approx(cell["predicted_step"], rel=1e-3)
        assert [lane[0] for lane in timeline["lanes"] if lane[1] == "device"] == [
            f"device {n}" for n in range(cell["devices"])
        ]
        for flat in timeline["spans"]:
            ends = [start + length for start, length in zip(flat[1::3], flat[2::3], strict=True)]
            assert all(end <= 10_000 for end in ends)
        assert all(0 <= use <= 1000 for use in detail["use"])
    assert [link["groups"] for link in host["links"]] == [[[0, 1, 2, 3]], [[0, 1, 2, 3]]]


def test_the_study_is_within_two_percent_and_its_bridge_is_shared() -> None:
    environment = stevens_environment()
    cells, environments = stevens_measurements(), {environment.id: environment}
    predictions, _ = predict_cells(cells, environments, None)
    page = page_of_measurements("Study", cells, environments, predictions)
    assert len(page["cells"]["rows"]) == 96
    assert (page["accuracy"]["cells"], page["accuracy"]["median_error_percent"] < 2) == (72, True)
    assert page["verdict"]["figure"] == "3.76x"
    assert page["verdict"]["sentence"].startswith("conv trains 3.76x as fast as on one device (data-parallel")
    assert "linear is never faster on more devices: at best 0.54x" in page["verdict"]["sentence"]
    kinds = {link["kind"]: link["groups"] for link in page["topologies"][-1]["hosts"][0]["links"]}
    assert kinds["pcie-host-bridge"] == [[0, 1, 2, 3]]


def test_the_page_loads_and_sends_nothing(measured_page: Page) -> None:
    parsed = Parsed(html_of(measured_page))
    assert not [attributes for tag, attributes in parsed.tags if tag in ("link", "iframe", "img", "object")]
    assert all("src" not in attributes for tag, attributes in parsed.tags if tag == "script")
    [policy] = [str(a["content"]) for tag, a in parsed.tags if tag == "meta" and a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in parsed.scripts[1:]]
    assert re.findall(r"sha256-([^']+)", policy) == hashes
    assert "unsafe-eval" not in policy


def test_names_with_markup_stay_text() -> None:
    page = awkward_page()
    html = html_of(page)
    parsed = Parsed(html)
    assert len(parsed.scripts) == 1 + 3  # the data, two libraries, the page's own script
    assert AWKWARD in parsed.texts  # the heading, unescaped by the parser
    assert {cell["workload"] for cell in cells_of(parsed.document)} >= {AWKWARD}
    assert "<b>bold</b>" not in html
    assert "\u2028" not in parsed.scripts[0]
    assert "alert('x')</script>" not in html


@pytest.mark.parametrize("value", ["</script>", "<!--", "\u2028\u2029", "&lt;", 'a"b', "名前"])
def test_json_in_html_is_read_back(value: str) -> None:
    text = json_in_html({value: [value]})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {value: [value]}


def test_sections_come_in_order_and_only_with_data(measured_page: Page) -> None:
    parsed = Parsed(html_of(measured_page))
    filled = ["speedup", "epochs", "phases", "timeline", "topology", "memory", "cells"]
    assert parsed.ids("section") == ["verdict", *filled, "findings", "environment"]
    both = Parsed(html_of({**page_of_tuning(tune_document()), **page_of_advice(advice_document())}))
    assert both.ids("section") == ["verdict", "comparison", "tuning", *filled, "findings", "environment"]
    assert Parsed(html_of(page_of_tuning(tune_document()))).ids("section") == ["verdict", "tuning", "environment"]


def test_every_link_of_the_menu_has_its_section(measured_page: Page) -> None:
    parsed = Parsed(html_of(measured_page))
    links = [str(a["href"]) for tag, a in parsed.tags if tag == "a"]
    assert set(links) - {"#main"} == {f"#{name}" for name in parsed.ids("section")} - {"#verdict"}


def test_1000_cells_stay_below_3_MB_also_with_recorded_steps_of_the_largest_size() -> None:
    spans = [(PHASES[number % 12], 100 * (number % 100), 100) for number in range(MOST_SPANS)]
    step = RecordedStep(0.1, [Lane(0, "compute", spans[:100]), Lane(1, "compute", spans[100:])])
    cells = [replace(cell, timeline=step) for cell in many_cells(1_000)]
    environments = {MACHINE.id: MACHINE}
    predictions, _ = predict_cells(cells, environments, outline)
    assert len(predictions) > 800
    page = page_of_measurements("Report", cells, environments, predictions)
    assert len(page["cells"]["rows"]) == 1_000
    assert 100 < len(page["recorded"]) < 1_000
    assert len(html_of(page)) < 3_000_000


def test_one_cell_and_failed_cells_have_a_verdict_that_says_so() -> None:
    assert page_of([timed("single", 1, 20, 0.1)])["verdict"]["sentence"].startswith("Only one device was measured")
    lone = page_of([timed("mirrored", 2, 20, 0.1)])["verdict"]["sentence"]
    assert lone.startswith("No cell on several devices has a cell on one device at the same batch")
    failed = [cell for cell in grid() if cell.status == "oom"]
    page = page_of(failed)
    assert page["verdict"] == {"sentence": "No cell could be timed: 1 oom.", "tone": "open"}
    assert "epoch" not in page["cells"]["columns"]
    assert cells_of(page)[0]["reason"] == "rank 1: full"


@pytest.mark.parametrize(
    ("width", "words", "tone"), [(0.02, "", "good"), (0.2, "; 95% interval", "good"), (0.7, "; 95% interval", "open")]
)
def test_the_verdict_gives_the_interval_of_a_rough_speedup(width: float, words: str, tone: str) -> None:
    def cell(strategy: str, devices: int, seconds: float) -> Measurement:
        interval = Interval(seconds, seconds * (1 - width / 2), seconds * (1 + width), 20)
        return timed(strategy, devices, 20, seconds, step_seconds=interval)

    verdict = page_of([cell("single", 1, 0.3), cell("mirrored", 2, 0.1)])["verdict"]
    start = "linear trains 3.00x as fast as on one device (mirrored on 2 devices at batch 20"
    assert verdict["sentence"].startswith(start + (words or ")."))
    assert verdict["tone"] == tone


def test_advice_shows_its_rows_and_the_comparison() -> None:
    document = advice_document()
    page = page_of_advice(document)
    best = document["verdict"]["best"]
    assert page["verdict"]["sentence"] == "Fastest: 8x-v100-nvlink."
    assert page["verdict"]["more"] == f"8x-v100-nvlink: {document['verdict']['reason']}"
    assert page["verdict"]["figure"] == "$412.70"
    alone = {key: value for key, value in document.items() if key != "comparison"}
    assert page_of_advice(alone)["verdict"]["figure"] == f"{best['speedup']:.2f}x"
    assert page_of_advice(alone)["verdict"]["sentence"] == document["verdict"]["reason"]
    assert len(page["cells"]["rows"]) == len(document["rows"])
    assert [entry["cluster"] for entry in page["comparison"]] == [entry["cluster"] for entry in document["comparison"]]
    assert page["comparison"][0]["best"]["devices"] == best["devices"]
    entry, given = page["comparison"][1], document["comparison"][1]
    assert (entry["time"], entry["cost"]) == pytest.approx((given["seconds_to_finish"], given["cost"]), rel=1e-5)
    step = given["best"]["step_seconds"]
    assert entry["time_high"] / entry["time"] == pytest.approx(step["high"] / step["predicted"], rel=1e-4)
    assert page["recommended"] == "8x-v100-nvlink"
    assert page["best"] == {"strategy": best["strategy"], "devices": best["devices"], "batch": best["batch"]}


def test_clusters_are_compared_per_million_samples_if_the_length_of_training_is_not_known() -> None:
    document = advice_document()
    entries = [
        {**entry, "seconds_to_finish": None, "cost": None, "seconds_per_million_samples": 50.0 + number}
        for number, entry in enumerate(document["comparison"])
    ]
    page = page_of_advice({**document, "comparison": entries})
    assert [entry["time"] for entry in page["comparison"]] == [50.0, 51.0, 52.0]
    assert (page["verdict"]["figure"], page["verdict"]["caption"]) == ("50 s", "per million samples on 8x-v100-nvlink")


def test_advice_with_a_fixed_batch_per_device_is_about_weak_scaling() -> None:
    advice = advise("linear", cluster="4x-gtx-1080-ti", step_time="0.01@32", batch_per_device=32, strategy=["mirrored"])
    cells = cells_of(page_of_advice(advice.to_dict()))
    assert [(cell["batch"], cell["weak_batch"]) for cell in cells] == [(32, 32), (64, 32), (128, 32)]


def test_an_advice_page_has_a_timeline_for_every_row_that_fits() -> None:
    advice = advise("ResNet-50", step_time="0.062@32", cluster="4x-rtx-3090-nvlink", batch=[64], strategy=["mirrored"])
    page = advice.page()
    assert [cell["detail"] for cell in cells_of(page)] == [0, 1, 2]
    bridges = page["topologies"][-1]["hosts"][0]["links"][0]
    assert (bridges["kind"], bridges["groups"]) == ("nvlink-bridge", [[0, 1], [2, 3]])
    html = advice._repr_html_()
    packed = re.search(r"atob\(&quot;([^&]+)&quot;\)", html)
    assert packed
    assert gzip.decompress(base64.b64decode(packed[1])).decode() == html_of(page)
    assert len(html) < 400_000


def test_tuning_shows_the_gain_of_the_best_trial() -> None:
    page = page_of_tuning(tune_document())
    assert (page["tuning"]["best"], page["verdict"]["figure"]) == (2, "1.72x")
    assert (
        page["verdict"]["sentence"]
        == "With compile, channels-last, one RTX 4090 trains unet 1.72x as fast as in plain eager mode."
    )
    one = {**tune_document(), "trials": tune_document()["trials"][:1], "best": 0}
    assert page_of_tuning(one)["verdict"]["sentence"].startswith("Only eager was timed")


def test_an_experiment_with_cells_has_their_verdict_and_keeps_names_in_lower_case() -> None:
    findings = [{"text": f"{text} gains", "about": "", "notable": True} for text in ("linear", "every model")]
    experiment: Page = {
        "title": "Experiment",
        "verdict": {"sentence": "Headline.", "tone": "open"},
        "findings": findings,
    }
    cells = grid_page()
    page = with_cells(experiment, cells)
    assert page["verdict"] == {**cells["verdict"], "more": "Headline."}
    assert {"Headline.", "linear gains", "Every model gains", cells["verdict"]["figure"]} <= set(
        Parsed(html_of(page)).texts
    )


def test_an_experiment_without_cells_embeds_its_table_and_figures(tmp_path: Path) -> None:
    figure = tmp_path / "tasks.svg"
    figure.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    result = ExperimentResult(
        "gpu-vs-cpu", ["a <finding>"], ["task", "CPU"], [["sum", "1 ms"]], [figure], headline="No."
    )
    paged = with_page(result, tmp_path)
    assert paged.files == [tmp_path / "report.html"]
    parsed = Parsed((tmp_path / "report.html").read_text())
    assert {"No.", "A <finding>", "task", "1 ms"} <= set(parsed.texts)
    [image] = [str(attributes["src"]) for tag, attributes in parsed.tags if tag == "img"]
    assert base64.b64decode(image.partition("base64,")[2]) == figure.read_bytes()


def test_the_scripts_set_text_only_as_text() -> None:
    """Names from measurements reach the page through textContent, never as markup."""
    script = Parsed(html_of(page_of_tuning(tune_document()))).scripts[-1]
    assert len(SCRIPTS) == 6
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
