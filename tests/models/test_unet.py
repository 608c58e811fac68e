"""Images and masks, generated or read from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.unet import load_shapes


def write_pair(folder: Path, stem: str, grey: int, mask_value: int) -> None:
    for part in ("images", "masks"):
        (folder / part).mkdir(exist_ok=True, parents=True)
    Image.new("RGB", (20, 10), (grey, grey, grey)).save(folder / "images" / f"{stem}.jpg")
    mask = Image.new("L", (20, 10), 0)
    mask.paste(mask_value, (0, 0, 10, 10))
    mask.save(folder / "masks" / f"{stem}.png")


def test_generated_masks_cover_the_bright_pixels() -> None:
    data = load_shapes(DataRequest(samples=50), size=32)
    assert data.tensors is not None
    images, masks = data.tensors
    assert data.source == "generated shapes"
    assert images.shape == masks.shape == (50, 1, 32, 32)
    assert set(masks.flatten().tolist()) == {0.0, 1.0}
    assert 0.02 < masks.mean() < 0.4
    assert images[masks > 0].mean() > images[masks == 0].mean() + 0.2


def test_equal_seeds_generate_equal_shapes() -> None:
    first, again, other = (load_shapes(DataRequest(samples=3, seed=seed), size=16).tensors for seed in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("mask_value", [1, 255])
def test_images_and_masks_are_paired_by_name(tmp_path: Path, mask_value: int) -> None:
    write_pair(tmp_path, "b", 255, mask_value)
    write_pair(tmp_path, "a", 0, mask_value)
    data = load_shapes(DataRequest(tmp_path), size=8)
    assert data.tensors is not None
    assert data.items is not None
    images, masks = data.tensors
    assert data.source == f"2 images in {tmp_path}"
    assert images.mean((1, 2, 3)).tolist() == [0.0, 1.0]
    assert masks[0, 0, 0].tolist() == [1.0] * 4 + [0.0] * 4
    assert torch.equal(data.items[1][1], masks[1])


def test_error_names_a_missing_folder_or_mask(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder '.*images'; .* images/ and masks/"):
        load_shapes(DataRequest(tmp_path), size=8)
    write_pair(tmp_path, "a", 0, 1)
    (tmp_path / "masks" / "a.png").rename(tmp_path / "masks" / "b.png")
    with pytest.raises(UserError, match=r"a\.jpg has no mask; add .*masks/a\.\*"):
        load_shapes(DataRequest(tmp_path), size=8)


def test_error_names_a_file_that_is_not_an_image(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", 0, 1)
    (tmp_path / "images" / "a.jpg").write_text("not an image")
    with pytest.raises(UserError, match=r"a\.jpg is not a readable image"):
        load_shapes(DataRequest(tmp_path), size=8)


def test_error_names_a_truncated_image(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", 0, 1)
    path = tmp_path / "images" / "a.jpg"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cannot read the image .*a\.jpg"):
        load_shapes(DataRequest(tmp_path), size=8)
