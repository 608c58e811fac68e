"""Images with masks for segmentation: generated shapes, or a folder with images/ and masks/."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.data.data import Data, DataRequest
from scalewise.data.samples import samples_to_make, samples_to_use
from scalewise.errors import UserError

Plane = npt.NDArray[np.float32]


def load_shapes(request: DataRequest, size: int) -> Data:
    """Grey images and their masks as [N, 1, size, size] each; a mask is 1 where a shape is."""
    if request.folder is None:
        return generated_shapes(request, size)
    items = ImageFiles(*_choose(request, request.folder), size)
    pairs = [items[index] for index in range(len(items))]
    tensors = torch.stack([image for image, _ in pairs]), torch.stack([mask for _, mask in pairs])
    return Data(f"{len(pairs):,} images in {request.folder}", tensors, items)


def generated_shapes(request: DataRequest, size: int) -> Data:
    """Discs, rectangles and triangles, up to three to an image, on a shaded and noisy ground."""
    # Large images are fewer, so that all of them together stay within 256 MB.
    count = samples_to_make(request, min(1_000, max(16, 2**25 // size**2)))
    images = np.empty((count, 1, size, size), dtype=np.float32)
    masks = np.empty_like(images)
    for index in range(count):
        images[index, 0], masks[index, 0] = draw_shapes(np.random.default_rng((request.seed, index)), size)
    return Data("generated shapes", (torch.from_numpy(images), torch.from_numpy(masks)))


def draw_shapes(random: np.random.Generator, size: int) -> tuple[Plane, Plane]:
    y, x = np.mgrid[0 : 1 : size * 1j, 0 : 1 : size * 1j].astype(np.float32)
    mask = np.zeros((size, size), dtype=bool)
    image = 0.2 + 0.2 * random.random(dtype=np.float32) * x
    for _ in range(random.integers(1, 4)):
        (across, down), radius = random.uniform(0.2, 0.8, 2), random.uniform(0.12, 0.3)
        kind = random.integers(3)
        if kind == 0:
            inside = (x - across) ** 2 + (y - down) ** 2 < radius**2
        elif kind == 1:
            inside = (abs(x - across) < radius) & (abs(y - down) < radius * random.uniform(0.4, 1.0))
        else:
            inside = (y < down + radius) & (abs(x - across) < (y - down + radius) / 2)
        mask |= inside
        image = np.where(inside, random.uniform(0.5, 0.9), image)
    image = image + 0.08 * random.standard_normal((size, size), dtype=np.float32)
    return image.astype(np.float32), mask.astype(np.float32)


def _choose(request: DataRequest, folder: Path) -> tuple[list[Path], list[Path]]:
    images, masks = (_files(folder / part) for part in ("images", "masks"))
    for stem, path in images.items():
        if stem not in masks:
            raise UserError(f"{path} has no mask: {folder / 'masks' / stem}.* is expected")
    stems = sorted(images)
    chosen = [stems[index] for index in samples_to_use(request, len(stems), str(folder))]
    return [images[stem] for stem in chosen], [masks[stem] for stem in chosen]


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise UserError(f"no folder '{folder}'; images/ and masks/ with files of the same names are expected")
    files = {path.stem: path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")}
    if not files:
        raise UserError(f"no images in '{folder}'")
    return files


def _read(path: Path, size: int, resample: Image.Resampling) -> Plane:
    try:
        with Image.open(path) as image:
            grey = image.convert("L").resize((size, size), resample)
    except UnidentifiedImageError:
        raise UserError(f"{path} is not an image that can be read") from None
    except OSError as error:
        raise UserError(f"cannot read the image {path}: {error}") from None
    return np.asarray(grey, dtype=np.float32)


class ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """Reads one image and its mask per sample."""

    def __init__(self, images: Sequence[Path], masks: Sequence[Path], size: int) -> None:
        self.images = images
        self.masks = masks
        self.size = size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = _read(self.images[index], self.size, Image.Resampling.BILINEAR) / 255
        mask = _read(self.masks[index], self.size, Image.Resampling.NEAREST)
        # Masks are stored as 0 and 1, or as 0 and 255: half of the largest value tells both apart.
        shape = (mask > mask.max() / 2).astype(np.float32)
        return torch.from_numpy(image[np.newaxis]), torch.from_numpy(shape[np.newaxis])
