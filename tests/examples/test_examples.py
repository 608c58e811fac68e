"""Example files run with the commands in their docstrings, at a small size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import numpy
import pytest
from PIL import Image

from tests.command import ROOT, Run

EXAMPLES = ROOT / "examples"


def document_of(scalewise: Run, command: str, example: str, *options: object) -> Any:
    output = scalewise(command, EXAMPLES / example, *options, "--json")
    assert output.code == 0, output.stderr
    return json.loads(output.stdout)


@pytest.fixture(scope="module")
def folder_of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 12 images with a bright square each, and their masks."""
    folder = tmp_path_factory.mktemp("photos")
    random = numpy.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number in range(12):
        mask = numpy.zeros((48, 40), dtype=numpy.uint8)
        row, column = random.integers(0, 24, 2)
        mask[row : row + 16, column : column + 16] = 255
        image = (random.integers(0, 60, (48, 40, 3)) + (mask[..., None] // 2)).astype(numpy.uint8)
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
        Image.fromarray(image).save(folder / "images" / f"{number}.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("mirrored", 2)])
def test_a_workload_with_token_ids_trains(scalewise: Run, strategy: str, devices: int) -> None:
    options = ("--strategy", strategy, "--devices", devices, "--device-kind", "cpu", "--batch", 16, "--steps", 4)
    result = document_of(scalewise, "train", "lstm_language_model.py:workload", *options)
    assert result["parameters"] == 521_192
    assert 6.5 < result["loss"] < 7.5  # log(1000) = 6.9 for random tokens


@pytest.mark.parametrize(
    ("example", "size", "classes", "parameters"),
    [
        ("resnet50.py:resnet50", "3x64x64", 1000, 25_557_032),
        ("vit.py:vit_b16", "3x224x224", 1000, 86_567_656),  # as in torchvision
        ("vit.py:vit_tiny", "3x32x32", 10, 214_218),
    ],
)
def test_models_have_the_published_number_of_parameters(
    scalewise: Run, example: str, size: str, classes: int, parameters: int
) -> None:
    result = document_of(scalewise, "describe", example, "--input", size, "--classes", classes)
    assert result["parameters"] == parameters


@pytest.mark.slow
def test_the_vision_transformer_gives_the_same_loss_under_every_split(scalewise: Run) -> None:
    options = ("--input", "3x32x32", "--classes", 10, "--device-kind", "cpu", "--batch", 8, "--steps", 3)
    losses = [
        document_of(scalewise, "train", "vit.py:vit_tiny", "--strategy", strategy, "--devices", devices, *options)[
            "loss"
        ]
        for strategy, devices in (("single", 1), ("pipeline", 2), ("tensor", 2))
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("load", ["auto", "stream:workers=1"])
def test_the_unet_learns_images_of_a_folder(scalewise: Run, folder_of_images: Path, load: str) -> None:
    options = ("--data", folder_of_images, "--batch", 4, "--epochs", 8, "--device-kind", "cpu", "--load", load)
    result = document_of(scalewise, "train", "unet_own_images.py:workload", *options)
    assert result["data"] == f"12 images in {folder_of_images}"
    assert result["accuracy"] > 0.9  # the squares cover 13 % of an image
    assert result["loss"] < 0.5


def test_an_image_without_a_mask_is_named(scalewise: Run, folder_of_images: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes((folder_of_images / "images" / "0.png").read_bytes())
    output = scalewise("train", f"{EXAMPLES / 'unet_own_images.py'}:workload", "--data", tmp_path)
    output.refused(2, f"no mask for a.png in {tmp_path}", "masks/NAME.png")


NOTEBOOK = EXAMPLES / "will_more_devices_help.ipynb"


def cells_of_notebook() -> list[Any]:
    cells: list[Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_saved_with_its_outputs() -> None:
    first, *others = cells_of_notebook()
    assert not first["outputs"]  # imports
    assert all(cell["outputs"] for cell in others)
    kinds = [kind for cell in others for output in cell["outputs"] for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3
    assert "error" not in [output["output_type"] for cell in others for output in cell["outputs"]]


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: matplotlib.pyplot.close("all"))
    names: dict[str, Any] = {}
    for cell in cells_of_notebook():
        text = (
            "".join(cell["source"])
            .replace("SECONDS_PER_CELL = 4", "SECONDS_PER_CELL = 0.2")
            .replace("STEPS = 40", "STEPS = 4")
        )
        exec(compile(text, NOTEBOOK.name, "exec"), names)
    assert names["result"].steps == 4
    assert sorted(names["frames"]) == ["linear", "vit_tiny"]
    assert all(set(frame.status) == {"ok"} for frame in names["frames"].values())
    assert names["medians"].shape == (4, 2)
