"""U-Net that segments generated shapes, and its images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data, DataRequest, samples_to_make, samples_to_use
from scalewise.models.workload import Workload

Plane = npt.NDArray[np.float32]


def load_shapes(request: DataRequest, size: int) -> Data:
    """Return grey images and their masks as [N, 1, size, size] each; the mask of a shape is 1."""
    if request.folder is None:
        return generated_shapes(request, size)
    items = ImageFiles(*_choose_files(request, request.folder), size)
    pairs = [items[index] for index in range(len(items))]
    tensors = torch.stack([image for image, _ in pairs]), torch.stack([mask for _, mask in pairs])
    return Data(f"{len(pairs):,} images in {request.folder}", tensors, items)


def generated_shapes(request: DataRequest, size: int) -> Data:
    """Generate images of up to three discs, rectangles and triangles on a shaded, noisy background."""
    # Fewer large images, so that all images together take at most 256 MB.
    count = samples_to_make(request, min(1_000, max(16, 2**25 // size**2)))
    images = np.empty((count, 1, size, size), dtype=np.float32)
    masks = np.empty_like(images)
    for index in range(count):
        images[index, 0], masks[index, 0] = draw_shapes(np.random.default_rng((request.seed, index)), size)
    return Data("generated shapes", (torch.from_numpy(images), torch.from_numpy(masks)))


def draw_shapes(random: np.random.Generator, size: int) -> tuple[Plane, Plane]:
    """Draw an image and its mask."""
    y, x = np.mgrid[0 : 1 : size * 1j, 0 : 1 : size * 1j].astype(np.float32)
    mask = np.zeros((size, size), dtype=bool)
    image = 0.2 + 0.2 * random.random(dtype=np.float32) * x
    for _ in range(random.integers(1, 4)):
        (center_x, center_y), radius = random.uniform(0.2, 0.8, 2), random.uniform(0.12, 0.3)
        kind = random.integers(3)
        if kind == 0:
            inside = (x - center_x) ** 2 + (y - center_y) ** 2 < radius**2
        elif kind == 1:
            inside = (abs(x - center_x) < radius) & (abs(y - center_y) < radius * random.uniform(0.4, 1.0))
        else:
            inside = (y < center_y + radius) & (abs(x - center_x) < (y - center_y + radius) / 2)
        mask |= inside
        image = np.where(inside, random.uniform(0.5, 0.9), image)
    image = image + 0.08 * random.standard_normal((size, size), dtype=np.float32)
    return image.astype(np.float32), mask.astype(np.float32)


def _choose_files(request: DataRequest, folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the paths of the images and of their masks."""
    images, masks = (_files(folder / part) for part in ("images", "masks"))
    for stem, path in images.items():
        if stem not in masks:
            raise UserError(f"{path} has no mask; add {folder / 'masks' / stem}.*")
    stems = sorted(images)
    chosen = [stems[index] for index in samples_to_use(request, len(stems), str(folder))]
    return [images[stem] for stem in chosen], [masks[stem] for stem in chosen]


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise UserError(f"no folder '{folder}'; --data needs folders images/ and masks/ with files of the same names")
    files = {path.stem: path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")}
    if not files:
        raise UserError(f"no images in '{folder}'")
    return files


def _read(path: Path, size: int, resample: Image.Resampling) -> Plane:
    try:
        with Image.open(path) as image:
            grey = image.convert("L").resize((size, size), resample)
    except UnidentifiedImageError:
        raise UserError(f"{path} is not a readable image") from None
    except OSError as error:
        raise UserError(f"cannot read the image {path}: {error}") from None
    return np.asarray(grey, dtype=np.float32)


class ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """Dataset that reads one image and its mask per sample."""

    def __init__(self, images: Sequence[Path], masks: Sequence[Path], size: int) -> None:
        self.images = images
        self.masks = masks
        self.size = size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = _read(self.images[index], self.size, Image.Resampling.BILINEAR) / 255
        mask = _read(self.masks[index], self.size, Image.Resampling.NEAREST)
        # Masks are stored as 0 and 1 or as 0 and 255; half of the largest value separates both kinds.
        binary = (mask > mask.max() / 2).astype(np.float32)
        return torch.from_numpy(image[np.newaxis]), torch.from_numpy(binary[np.newaxis])


def build(name: str, width: int, depth: int, norm: str, size: int) -> Workload:
    if norm not in ("none", "batch"):
        raise UserError(f"'{name}': norm must be none or batch, not '{norm}'")
    if width < 1 or depth < 1:
        raise UserError(f"'{name}': width and depth must be at least 1, not {width} and {depth}")
    if size < 2**depth or size % 2**depth:
        raise UserError(f"'{name}': size must be a multiple of {2**depth} to be halved {depth} times, not {size}")
    return Workload(
        name=name,
        model=partial(unet, width, depth, batch_norm=norm == "batch"),
        data=partial(load_shapes, size=size),
        loss=functional.binary_cross_entropy_with_logits,
        accuracy=pixel_accuracy,
        input_shape=(1, size, size),
    )


def pixel_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).float().mean()


def unet(width: int, depth: int, batch_norm: bool) -> nn.Sequential:
    """Build a U-Net as a sequence of levels, which can be split anywhere; skips are passed on in a tuple."""
    channels = [width * 2**level for level in range(depth + 1)]
    downs = [Down(below, above, batch_norm) for below, above in zip([1, *channels], channels[:-1], strict=False)]
    bottom = Bottom(channels[-2], channels[-1], batch_norm)
    ups = [Up(2 * above, above, batch_norm) for above in reversed(channels[:-1])]
    return nn.Sequential(*downs, bottom, *ups, Head(width))


Levels = Tensor | tuple[Tensor, ...]
"""Features of the current level, followed by the skips for the decoder, the largest first."""


def split(levels: Levels) -> tuple[Tensor, tuple[Tensor, ...]]:
    return (levels, ()) if isinstance(levels, Tensor) else (levels[0], levels[1:])


def double_convolution(inputs: int, outputs: int, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers.append(nn.Conv2d(channels, outputs, kernel_size=3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Down(nn.Module):
    """Encoder level: convolve, keep the result as a skip, halve the image."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool) -> None:
        super().__init__()
        self.convolutions = double_convolution(inputs, outputs, batch_norm)
        self.pool = nn.MaxPool2d(2)

    def forward(self, levels: Levels) -> Levels:
        features, skips = split(levels)
        features = self.convolutions(features)
        return self.pool(features), *skips, features


class Bottom(nn.Module):
    """Lowest level: convolve the smallest image."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool) -> None:
        super().__init__()
        self.convolutions = double_convolution(inputs, outputs, batch_norm)

    def forward(self, levels: Levels) -> Levels:
        features, skips = split(levels)
        return self.convolutions(features), *skips


class Up(nn.Module):
    """Decoder level: double the image, concatenate the skip of the same size, convolve."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2)
        self.convolutions = double_convolution(2 * outputs, outputs, batch_norm)

    def forward(self, levels: Levels) -> Levels:
        features, skips = split(levels)
        features = torch.cat([skips[-1], self.grow(features)], dim=1)
        return self.convolutions(features), *skips[:-1]


class Head(nn.Module):
    """Output layer with one logit per pixel: whether the pixel belongs to a shape."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, 1, kernel_size=1)

    def forward(self, levels: Levels) -> Tensor:
        logits: Tensor = self.convolution(split(levels)[0])
        return logits
