"""ResNet-50 in plain torch (25.6 million parameters), as an example of a user's own model.

scalewise advise examples/resnet50.py:resnet50 --input 3x224x224 --classes 1000
scalewise tune examples/resnet50.py:resnet50 --input 3x32x32 --classes 10 --batch 8
"""

from __future__ import annotations

from torch import Tensor, nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width inside a block and number of blocks, for every stage."""


class Bottleneck(nn.Module):
    """Bottleneck block: 1 x 1, 3 x 3 and 1 x 1 convolutions with a residual connection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.convolve = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.expand = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != 4 * width:
            projection = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(4 * width))

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.relu(self.expand(self.convolve(self.reduce(inputs))) + self.shortcut(inputs))


def resnet50(classes: int = 1000) -> nn.Module:
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
    ]  # fmt: skip
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            parts.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
