"""U-Net on one's own images: a folder with `images/NAME.png` and a mask of the same name in `masks/NAME.png`.

scalewise train examples/unet_own_images.py:workload --data path/to/folder --batch 8 --epochs 2
scalewise advise examples/unet_own_images.py:workload --data path/to/folder --batch 8

Images are read while training runs: `--load stream:workers=2` by two loader processes. Without --data, four generated
images stand in, so that the model can be described and predicted.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from scalewise import Data, DataRequest, UserError, Workload

SIZE = 64
"""Height and width to which images and masks are resized; a multiple of 8, because they are halved three times."""


class ImagesAndMasks(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of an RGB image [3, SIZE, SIZE] in 0 to 1 and its mask [1, SIZE, SIZE] of 0 and 1."""

    def __init__(self, images: list[Path]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path = self.images[index]
        image = Image.open(path).convert("RGB").resize((SIZE, SIZE))
        mask = Image.open(path.parents[1] / "masks" / path.name).convert("L").resize((SIZE, SIZE))
        pixels = torch.from_numpy(numpy.array(image, dtype=numpy.float32)).permute(2, 0, 1) / 255
        inside = torch.from_numpy(numpy.array(mask, dtype=numpy.float32))[None] > 127
        return pixels, inside.float()


def load(request: DataRequest) -> Data:
    """Read the folder of --data; `samples` is --samples."""
    if request.folder is None:
        return Data("generated noise", (torch.rand(4, 3, SIZE, SIZE), torch.zeros(4, 1, SIZE, SIZE)))
    images = sorted((request.folder / "images").glob("*.png"))[: request.samples]
    unpaired = [path.name for path in images if not (request.folder / "masks" / path.name).exists()]
    if unpaired or not images:
        problem = f"no mask for {unpaired[0]}" if unpaired else "no images"
        raise UserError(f"{problem} in {request.folder}; write images/NAME.png and masks/NAME.png")
    return Data(f"{len(images)} images in {request.folder}", items=ImagesAndMasks(images))


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Encoder and decoder of three levels with skip connections; one logit per pixel."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.downs = nn.ModuleList(convolutions(*pair) for pair in zip([3, *widths], widths, strict=False))
        self.bottom = convolutions(widths[-1], 2 * widths[-1])
        self.grows = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in reversed(widths))
        self.ups = nn.ModuleList(convolutions(2 * width, width) for width in reversed(widths))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        features, skips = images, []
        for down in self.downs:
            features = down(features)
            skips.append(features)
            features = functional.max_pool2d(features, 2)
        features = self.bottom(features)
        for grow, up in zip(self.grows, self.ups, strict=True):
            features = up(torch.cat([skips.pop(), grow(features)], dim=1))
        logits: Tensor = self.head(features)
        return logits


def pixel_accuracy(logits: Tensor, masks: Tensor) -> Tensor:
    return ((logits > 0) == (masks > 0.5)).float().mean()


def workload() -> Workload:
    return Workload(
        name="unet-own-images",
        model=UNet,
        data=load,
        loss=functional.binary_cross_entropy_with_logits,
        accuracy=pixel_accuracy,
        input_shape=(3, SIZE, SIZE),
    )
