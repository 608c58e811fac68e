"""Convolutional networks as their papers define them, for counting operators without torchvision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

Step = tuple[int, int | tuple[int, int]] | tuple[int, int | tuple[int, int], int]
"""Output channels, kernel, and stride; a stride means no padding."""


class _Conv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int, same: bool) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if same else 0
        convolution = nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def _chain(inputs: int, *steps: Step) -> tuple[nn.Module, int]:
    layers: list[nn.Module] = []
    for step in steps:
        outputs, kernel, stride = step if len(step) == 3 else (*step, 0)
        layers.append(_Conv(inputs, outputs, kernel, stride or 1, same=not stride))
        inputs = outputs
    return nn.Sequential(*layers), inputs


def _averaged(inputs: int, outputs: int) -> tuple[nn.Module, int]:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _Conv(inputs, outputs, 1, 1, True)), outputs


class _Branches(nn.Module):
    """Branches side by side, their outputs concatenated."""

    def __init__(self, *branches: tuple[nn.Module, int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branch for branch, _ in branches)
        self.outputs = sum(outputs for _, outputs in branches)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.branches], 1)


def _fork(inputs: int, trunk: tuple[Step, ...], ends: tuple[Step, ...]) -> tuple[nn.Module, int]:
    """A chain whose result goes through several convolutions side by side."""
    first, width = _chain(inputs, *trunk) if trunk else (nn.Identity(), inputs)
    split = _Branches(*(_chain(width, end) for end in ends))
    return nn.Sequential(first, split), split.outputs


class InceptionV3(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = [
            _chain(3, (32, 3, 2), (32, 3, 1), (64, 3))[0], nn.MaxPool2d(3, 2),
            _chain(64, (80, 1), (192, 3, 1))[0], nn.MaxPool2d(3, 2),
        ]  # fmt: skip
        inputs = 192

        def add(block: _Branches) -> None:
            nonlocal inputs
            layers.append(block)
            inputs = block.outputs

        for pooled in (32, 64, 64):
            add(
                _Branches(
                    _chain(inputs, (64, 1)),
                    _chain(inputs, (48, 1), (64, 5)),
                    _chain(inputs, (64, 1), (96, 3), (96, 3)),
                    _averaged(inputs, pooled),
                )
            )
        add(
            _Branches(
                _chain(inputs, (384, 3, 2)),
                _chain(inputs, (64, 1), (96, 3), (96, 3, 2)),
                (nn.MaxPool2d(3, 2), inputs),
            )
        )
        for width in (128, 160, 160, 192):
            long: tuple[Step, ...] = ((width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7)))
            add(
                _Branches(
                    _chain(inputs, (192, 1)),
                    _chain(inputs, (width, 1), (width, (1, 7)), (192, (7, 1))),
                    _chain(inputs, *long),
                    _averaged(inputs, 192),
                )
            )
        add(
            _Branches(
                _chain(inputs, (192, 1), (320, 3, 2)),
                _chain(inputs, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)),
                (nn.MaxPool2d(3, 2), inputs),
            )
        )
        for _ in range(2):
            add(
                _Branches(
                    _chain(inputs, (320, 1)),
                    _fork(inputs, ((384, 1),), ((384, (1, 3)), (384, (3, 1)))),
                    _fork(inputs, ((448, 1), (384, 3)), ((384, (1, 3)), (384, (3, 1)))),
                    _averaged(inputs, 192),
                )
            )
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class InceptionV4(nn.Sequential):
    def __init__(self) -> None:
        seven: tuple[Step, ...] = ((64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3, 1))
        layers: list[nn.Module] = [
            _chain(3, (32, 3, 2), (32, 3, 1), (64, 3))[0],
            _Branches((nn.MaxPool2d(3, 2), 64), _chain(64, (96, 3, 2))),
            _Branches(_chain(160, (64, 1), (96, 3, 1)), _chain(160, *seven)),
            _Branches(_chain(192, (192, 3, 2)), (nn.MaxPool2d(3, 2), 192)),
        ]
        for _ in range(4):
            layers.append(
                _Branches(
                    _chain(384, (96, 1)),
                    _chain(384, (64, 1), (96, 3)),
                    _chain(384, (64, 1), (96, 3), (96, 3)),
                    _averaged(384, 96),
                )
            )
        reduced = _Branches(
            _chain(384, (384, 3, 2)), _chain(384, (192, 1), (224, 3), (256, 3, 2)), (nn.MaxPool2d(3, 2), 384)
        )
        layers.append(reduced)
        for _ in range(7):
            layers.append(
                _Branches(
                    _chain(1024, (384, 1)),
                    _chain(1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
                    _chain(1024, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
                    _averaged(1024, 128),
                )
            )
        layers.append(
            _Branches(
                _chain(1024, (192, 1), (192, 3, 2)),
                _chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2)),
                (nn.MaxPool2d(3, 2), 1024),
            )
        )
        for _ in range(3):
            layers.append(
                _Branches(
                    _chain(1536, (256, 1)),
                    _fork(1536, ((384, 1),), ((256, (1, 3)), (256, (3, 1)))),
                    _fork(1536, ((384, 1), (448, (1, 3)), (512, (3, 1))), ((256, (1, 3)), (256, (3, 1)))),
                    _averaged(1536, 256),
                )
            )
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1536, 1000))


Size = int | tuple[int, int]


def _norm_conv(
    inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size | str | None = None, groups: int = 1
) -> list[nn.Module]:
    """Convolution without bias, batch norm and ReLU."""
    if padding is None:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


class AlexNet(nn.Sequential):
    def __init__(self) -> None:
        channels, layers = 3, list[nn.Module]()
        for outputs, kernel, stride, padding, pool in (
            (64, 11, 4, 2, True), (192, 5, 1, 2, True),
            (384, 3, 1, 1, False), (256, 3, 1, 1, False), (256, 3, 1, 1, True),
        ):  # fmt: skip
            layers += [nn.Conv2d(channels, outputs, kernel, stride, padding), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(3, 2)] if pool else []
            channels = outputs
        super().__init__(*layers, nn.AdaptiveAvgPool2d(6), nn.Flatten(), *_classifier(256 * 36, 4096, 1000))


def _classifier(inputs: int, hidden: int, classes: int) -> list[nn.Module]:
    return [
        nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, classes),
    ]  # fmt: skip


VGG_BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(nn.Sequential):
    def __init__(self, depth: int, norm: bool = False) -> None:
        channels, layers = 3, list[nn.Module]()
        for width, repeats in zip((64, 128, 256, 512, 512), VGG_BLOCKS[depth], strict=True):
            for _ in range(repeats):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width)] if norm else []
                layers.append(nn.ReLU(inplace=True))
                channels = width
            layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *_classifier(512 * 49, 4096, 1000))


class _Residual(nn.Module):
    """Basic (two 3x3) or bottleneck (1x1, 3x3, 1x1) block."""

    def __init__(
        self, inputs: int, width: int, outputs: int, stride: int, groups: int, bottleneck: bool, stride_in_1x1: bool
    ) -> None:
        super().__init__()
        if bottleneck:
            first, second = (stride, 1) if stride_in_1x1 else (1, stride)
            layers = _norm_conv(inputs, width, 1, first) + _norm_conv(width, width, 3, second, groups=groups)
            layers += _norm_conv(width, outputs, 1)[:2]
        else:
            layers = _norm_conv(inputs, width, 3, stride) + _norm_conv(width, outputs, 3)[:2]
        self.branch = nn.Sequential(*layers)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_norm_conv(inputs, outputs, 1, stride)[:2])
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        out = self.branch(images)
        out += self.shortcut(images)
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Sequential):
    """ResNet, ResNeXt (`groups`, `group_width`) and wide ResNet (`group_width` 128).

    `stride_in_1x1` is the first version of the paper, which TensorFlow's benchmarks use.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        bottleneck: bool = True,
        groups: int = 1,
        group_width: int = 64,
        stride_in_1x1: bool = False,
    ) -> None:
        layers = [*_norm_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, repeats in enumerate(blocks):
            planes = 64 * 2**stage
            outputs = planes * (4 if bottleneck else 1)
            width = planes * group_width // 64 * groups
            for number in range(repeats):
                stride = 2 if stage and number == 0 else 1
                layers.append(_Residual(inputs, width, outputs, stride, groups, bottleneck, stride_in_1x1))
                inputs = outputs
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class _DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.layers(torch.cat(features, 1))  # type: ignore[no-any-return]


class _DenseBlock(nn.Module):
    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_DenseLayer(inputs + number * growth, growth) for number in range(layers))

    def forward(self, images: Tensor) -> Tensor:
        features = [images]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Sequential):
    def __init__(self, blocks: Sequence[int], growth: int = 32, first: int = 64) -> None:
        layers, channels = [*_norm_conv(3, first, 7, 2), nn.MaxPool2d(3, 2, 1)], first
        for number, repeats in enumerate(blocks):
            layers.append(_DenseBlock(channels, growth, repeats))
            channels += repeats * growth
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            if number < len(blocks) - 1:
                layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class _InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, kernel: int = 3) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = _norm_conv(inputs, hidden, 1) if expansion != 1 else []
        layers += _norm_conv(hidden, hidden, kernel, stride, groups=hidden) + _norm_conv(hidden, outputs, 1)[:2]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images)
        return images + out if self.residual else out


MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
MNASNET = ((3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))


class MobileNetV2(nn.Sequential):
    def __init__(self) -> None:
        layers, channels = _norm_conv(3, 32, 3, 2), 32
        for expansion, outputs, repeats, stride in MOBILENET_V2:
            for number in range(repeats):
                layers.append(_InvertedResidual(channels, outputs, stride if number == 0 else 1, expansion))
                channels = outputs
        layers += _norm_conv(channels, 1280, 1)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000))


class MNASNet(nn.Sequential):
    def __init__(self, width: float) -> None:
        def scaled(channels: int) -> int:
            rounded = max(8, int(channels * width + 4) // 8 * 8)
            return rounded if rounded >= 0.9 * channels * width else rounded + 8

        first, second = scaled(32), scaled(16)
        layers = (
            _norm_conv(3, first, 3, 2) + _norm_conv(first, first, 3, groups=first) + _norm_conv(first, second, 1)[:2]
        )
        channels = second
        for expansion, outputs, repeats, stride, kernel in MNASNET:
            for number in range(repeats):
                block = _InvertedResidual(channels, scaled(outputs), stride if number == 0 else 1, expansion, kernel)
                layers.append(block)
                channels = scaled(outputs)
        layers += _norm_conv(channels, 1280, 1)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000))


class _Shuffle(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        width = outputs // 2
        self.stride = stride
        self.left = nn.Sequential()
        if stride > 1:
            depthwise = _norm_conv(inputs, inputs, 3, stride, groups=inputs)[:2]
            self.left = nn.Sequential(*depthwise, *_norm_conv(inputs, width, 1))
        self.right = nn.Sequential(
            *_norm_conv(inputs if stride > 1 else width, width, 1),
            *_norm_conv(width, width, 3, stride, groups=width)[:2],
            *_norm_conv(width, width, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        left, right = (images, images) if self.stride > 1 else images.chunk(2, dim=1)
        joined = torch.cat([self.left(left), self.right(right)], 1)
        batch, channels, height, width = joined.shape
        return joined.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(joined.shape)


class ShuffleNetV2(nn.Sequential):
    def __init__(self, stages: tuple[int, int, int], last: int = 1024) -> None:
        layers, channels = [*_norm_conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)], 24
        for outputs, repeats in zip(stages, (4, 8, 4), strict=True):
            for number in range(repeats):
                layers.append(_Shuffle(channels, outputs, 2 if number == 0 else 1))
                channels = outputs
        layers += _norm_conv(channels, last, 1)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1000))


class _Fire(nn.Module):
    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(inputs, squeeze, 1), nn.ReLU(inplace=True))
        self.narrow = nn.Sequential(nn.Conv2d(squeeze, expand, 1), nn.ReLU(inplace=True))
        self.wide = nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        images = self.squeeze(images)
        return torch.cat([self.narrow(images), self.wide(images)], 1)


class SqueezeNet(nn.Sequential):
    def __init__(self, version: str) -> None:
        pool = partial(nn.MaxPool2d, 3, 2, ceil_mode=True)
        old = version == "1.0"
        layers: list[nn.Module] = [
            nn.Conv2d(3, 96, 7, 2) if old else nn.Conv2d(3, 64, 3, 2),
            nn.ReLU(inplace=True),
            pool(),
        ]
        channels = 96 if old else 64
        fires = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
        for number, (squeeze, expand) in enumerate(fires):
            layers.append(_Fire(channels, squeeze, expand))
            layers += [pool()] if number in ((2, 6) if old else (1, 3)) else []
            channels = 2 * expand
        layers += [nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers)


def _resnet(*blocks: int, **options: bool | int) -> Callable[[], nn.Module]:
    return lambda: ResNet(blocks, **options)  # type: ignore[arg-type]


TORCHVISION: dict[str, Callable[[], nn.Module]] = {
    "alexnet": AlexNet,
    **{f"vgg{depth}": partial(VGG, depth) for depth in VGG_BLOCKS},
    **{f"vgg{depth}_bn": partial(VGG, depth, norm=True) for depth in VGG_BLOCKS},
    "resnet18": _resnet(2, 2, 2, 2, bottleneck=False),
    "resnet34": _resnet(3, 4, 6, 3, bottleneck=False),
    "resnet50": _resnet(3, 4, 6, 3),
    "resnet101": _resnet(3, 4, 23, 3),
    "resnet152": _resnet(3, 8, 36, 3),
    "resnext50_32x4d": _resnet(3, 4, 6, 3, groups=32, group_width=4),
    "resnext101_32x8d": _resnet(3, 4, 23, 3, groups=32, group_width=8),
    "wide_resnet50_2": _resnet(3, 4, 6, 3, group_width=128),
    "wide_resnet101_2": _resnet(3, 4, 23, 3, group_width=128),
    "densenet121": lambda: DenseNet((6, 12, 24, 16)),
    "densenet161": lambda: DenseNet((6, 12, 36, 24), 48, 96),
    "densenet169": lambda: DenseNet((6, 12, 32, 32)),
    "densenet201": lambda: DenseNet((6, 12, 48, 32)),
    "mobilenet_v2": MobileNetV2,
    "mnasnet0_5": lambda: MNASNet(0.5),
    "mnasnet0_75": lambda: MNASNet(0.75),
    "mnasnet1_0": lambda: MNASNet(1.0),
    "mnasnet1_3": lambda: MNASNet(1.3),
    "shufflenet_v2_x0_5": lambda: ShuffleNetV2((48, 96, 192)),
    "shufflenet_v2_x1_0": lambda: ShuffleNetV2((116, 232, 464)),
    "shufflenet_v2_x1_5": lambda: ShuffleNetV2((176, 352, 704)),
    "shufflenet_v2_x2_0": lambda: ShuffleNetV2((244, 488, 976), 2048),
    "squeezenet1_0": lambda: SqueezeNet("1.0"),
    "squeezenet1_1": lambda: SqueezeNet("1.1"),
}
"""Models by their torchvision names; images of 3 x 224 x 224."""
