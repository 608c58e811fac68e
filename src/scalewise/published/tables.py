"""Published models, and published tables with their sources."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost

Part = tuple[float, float]
"""Millions of parameters of a part of a model, and its share of the forward flops."""

OUTLINES: dict[str, tuple[Part, ...]] = {
    "AlexNet": ((2.5, 0.92), (58.6, 0.08)),
    "VGG16": ((14.7, 0.99), (123.6, 0.01)),
    "InceptionV3": ((21.8, 0.99), (2.0, 0.01)),
    "ResNet-18": ((0.16, 0.3), (0.53, 0.23), (2.1, 0.23), (8.4, 0.24)),
    "ResNet-50": ((0.23, 0.2), (1.2, 0.25), (7.1, 0.36), (15.0, 0.19), (2.05, 0.0)),
    "ResNet-101": ((0.23, 0.1), (1.2, 0.13), (26.1, 0.66), (15.0, 0.11), (2.05, 0.0)),
    "ResNet-152": ((0.23, 0.07), (2.5, 0.17), (40.4, 0.69), (15.0, 0.07), (2.05, 0.0)),
    "ResNeXt-50 32x4d": ((0.21, 0.2), (1.2, 0.25), (7.0, 0.36), (14.5, 0.19), (2.05, 0.0)),
    "ResNeXt-101 32x8d": ((0.47, 0.1), (2.4, 0.13), (52.0, 0.66), (31.9, 0.11), (2.05, 0.0)),
    "BERT base": ((23.8, 0.0), (85.1, 0.98), (0.6, 0.02)),
    "GPT-2": ((39.4, 0.0), (85.1, 1.0)),
    "DeepSpeech2": ((1.0, 0.2), (53.0, 0.78), (1.0, 0.02)),
    "YOLOv3": ((40.6, 0.6), (21.3, 0.4)),
    "NCF": ((1.5, 0.0), (0.1, 1.0)),
    "U-Net": ((2.3, 0.25), (16.5, 0.25), (10.0, 0.25), (2.2, 0.25)),
}
LAYERS = {
    "AlexNet": 8, "VGG16": 16, "InceptionV3": 189, "ResNet-18": 41, "ResNet-50": 107, "ResNet-101": 209,
    "ResNet-152": 311, "ResNeXt-50 32x4d": 107, "ResNeXt-101 32x8d": 209, "BERT base": 101, "GPT-2": 75,
    "DeepSpeech2": 12, "YOLOv3": 147, "NCF": 8, "U-Net": 23,
}  # fmt: skip
"""Number of layers that have parameters, including norms."""


@dataclass(frozen=True)
class Sample:
    """Memory of one sample: its input, and the activations that layers keep for backward."""

    shape: str
    input_bytes: int
    kept_MB: float
    """Outputs of convolutions and of the norms after them, with in-place activations; counted from the model's
    definition at the input size of its paper or code."""


CALLS_PER_LAYER, MODULES_PER_LAYER = 1.5, 1.2
"""Module calls and modules per layer that has parameters: activation functions have none, and blocks share them."""
_IMAGE = "3x224x224", 4 * 3 * 224 * 224
SAMPLES = {
    "AlexNet": Sample(*_IMAGE, 2.4),
    "VGG16": Sample(*_IMAGE, 60.4),
    "InceptionV3": Sample("3x299x299", 4 * 3 * 299 * 299, 83.5),
    "ResNet-18": Sample(*_IMAGE, 20.0),
    "ResNet-50": Sample(*_IMAGE, 83.7),
    "ResNet-101": Sample(*_IMAGE, 124.6),
    "ResNet-152": Sample(*_IMAGE, 175.2),
    "ResNeXt-50 32x4d": Sample(*_IMAGE, 110.0),
    "ResNeXt-101 32x8d": Sample(*_IMAGE, 244.5),
    "YOLOv3": Sample("3x416x416", 4 * 3 * 416 * 416, 318.2),
}
"""Samples of models with a usual input size; text, speech and the U-Net have none."""
_TENSOR_MILLIONS = 2.4
"""Largest number of parameters in a tensor of an outline, in millions. Parts are split into such tensors, so that they
fill buckets as the tensors of the real model do."""
FORWARD_SHARE = 1 / 3
"""Forward's share of compute: backward computes two matrix products for each one in forward."""


def outlined_profile(model: str, device: str, step_seconds: Mapping[int, float]) -> ProfileDocument:
    """Return published step times of one device, by batch, as a profile. The outline gives the shares of compute."""
    layers: list[LayerCost] = []
    for number, (millions, share) in enumerate(OUTLINES[model]):
        count = max(1, round(millions / _TENSOR_MILLIONS))
        for piece in range(count):
            layers.append(
                LayerCost(
                    name=f"part {number + 1}.{piece + 1}",
                    parameter_bytes=round(4e6 * millions / count),
                    activation_bytes=0,
                    flops=round(1e9 * share / count),
                )
            )
    return ProfileDocument(
        workload=model,
        device=device,
        execution="eager",
        samples_per_epoch=max(step_seconds),
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        layers=tuple(layers),
        module_calls=round(CALLS_PER_LAYER * LAYERS[model]),
        modules=round(MODULES_PER_LAYER * LAYERS[model]),
        steps=tuple(
            StepCost(
                batch=batch, forward=seconds * FORWARD_SHARE, backward=seconds * (1 - FORWARD_SHARE), update=0, load=0
            )
            for batch, seconds in sorted(step_seconds.items())
        ),
    )


@dataclass(frozen=True)
class Source:
    """Publication of a table's numbers and the machine that they were measured on."""

    citation: str
    machine: str
    year: int


STEVENS = Source(
    citation="Eric Stevens, The Impact of Model Architecture and Batch Size on Data Parallel multi-GPU Training, "
    "https://github.com/Eric-D-Stevens/multi_GPU_DataParallel_Tasks",
    machine="4x GTX 1080 Ti behind one PCIe host bridge (E. Stevens)",
    year=2020,
)


@dataclass(frozen=True)
class StevensRow:
    """Mean time of an epoch over 2,000 clips with torch.nn.DataParallel, without the first of 20 epochs."""

    workload: str
    devices: int
    batch: int
    epoch_seconds: float


@cache
def load_stevens() -> tuple[StevensRow, ...]:
    """Return the study's 96 cells: two models, 1 to 4 GPUs, 12 global batches."""
    return tuple(
        StevensRow(row["workload"], int(row["devices"]), int(row["batch"]), float(row["epoch_seconds"]))
        for row in _read_table("stevens_2020.csv")
    )


def _read_table(name: str) -> Iterator[dict[str, str]]:
    """Read the rows of a table that is part of the package."""
    with (files(__package__) / name).open() as lines:
        yield from csv.DictReader(lines)


SMALL = Source(
    citation="https://github.com/pytorch/pytorch (DDP), https://github.com/huggingface/transformers (GPT-2), "
    "https://github.com/pytorch/tutorials (ResNet-50), https://github.com/kakaobrain/torchgpipe (pipelines)",
    machine="8 x V100 with NVLink, 2 x TITAN RTX, two unnamed GPUs, 8 x P40",
    year=2020,
)


@dataclass(frozen=True)
class SmallRow:
    table: str
    model: str
    machine: str
    """Cluster of the catalogue; for the two unnamed GPUs, a cluster that they could be."""
    strategy: str
    """Strategy; 'alone' for one device."""
    devices: int
    hosts: int
    batch_per_device: int
    micro_batches: int
    seconds: float
    """Seconds of a step; of a sample if the batch is not published."""
    stages: tuple[float, ...] = ()
    """Share of the forward flops of each stage as published, counted from the model's definition; empty if all are
    equal."""


@cache
def load_small() -> tuple[SmallRow, ...]:
    return tuple(
        SmallRow(
            table=row["table"],
            model=row["model"],
            machine=row["machine"],
            strategy=row["strategy"],
            devices=int(row["devices"]),
            hosts=int(row["hosts"]),
            batch_per_device=int(row["batch_per_device"]),
            micro_batches=int(row["micro_batches"]),
            seconds=float(row["seconds"]),
            stages=tuple(map(float, row["stages"].split())),
        )
        for row in _read_table("small_tables.csv")
    )


T4 = Source(
    citation="Sia (SOSP 2023), profiled step times, https://github.com/siasosp23/artifacts",
    machine="1 to 4 AWS g4dn.12xlarge: 4 x T4 on PCIe each",
    year=2023,
)
MODELS = {
    "bert": "BERT base",
    "cifar10": "ResNet-18",
    "deepspeech2": "DeepSpeech2",
    "imagenet": "ResNet-50",
    "ncf": "NCF",
    "yolov3": "YOLOv3",
}


@dataclass(frozen=True)
class T4Row:
    model: str
    per_host: tuple[int, ...]
    """Number of GPUs used on each host: (1, 2) is one GPU on one host and two on another."""
    batch_per_device: int
    step_seconds: float

    @property
    def devices(self) -> int:
        return sum(self.per_host)


@cache
def load_t4() -> tuple[T4Row, ...]:
    return tuple(
        T4Row(row["model"], tuple(map(int, row["placement"])), int(row["batch_per_device"]), float(row["step_seconds"]))
        for row in _read_table("t4_2023.csv")
    )


TENSORFLOW = Source(
    citation="TensorFlow performance benchmarks (tf_cnn_benchmarks), https://github.com/tensorflow/tensorflow; "
    "https://github.com/tensorpack/benchmarks for its own rows",
    machine="DGX-1 with P100; 8 x K80 on Google and on Amazon, 10 GbE between hosts",
    year=2017,
)


@dataclass(frozen=True)
class TensorFlowRow:
    source: str
    machine: str
    """Cluster of the catalogue."""
    variables: str
    """Placement of the variables: on host, on devices, replicated by NCCL or by copies, on distributed servers."""
    model: str
    devices: int
    hosts: int
    batch_per_device: int
    data: str
    images_per_second: float

    @property
    def step_seconds(self) -> float:
        return self.devices * self.batch_per_device / self.images_per_second

    @property
    def series(self) -> tuple[str, ...]:
        """Fields that are equal in the rows of one GPU and of several."""
        return (self.source, self.machine, self.variables, self.model, str(self.batch_per_device), self.data)


@cache
def load_tensorflow() -> tuple[TensorFlowRow, ...]:
    return tuple(
        TensorFlowRow(
            source=row["source"],
            machine=row["machine"],
            variables=row["variables"],
            model=row["model"],
            devices=int(row["devices"]),
            hosts=int(row["hosts"]),
            batch_per_device=int(row["batch_per_device"]),
            data=row["data"],
            images_per_second=float(row["images_per_second"]),
        )
        for row in _read_table("tensorflow_2017.csv")
    )


SURVEY = Source(
    citation="the survey's table 2, after Deelvin, Model parallelism vs data parallelism in UNet speedup, "
    "https://medium.com/deelvin-machine-learning/model-parallelism-vs-data-parallelism-in-unet-speedup-1341bc74ff9e",
    machine="2x RTX 2070 SUPER",
    year=2020,
)
SINGLE, DATA_PARALLEL, MODEL_PARALLEL = "single", "mirrored", "layers"
SURVEY_EPOCH_SECONDS = {SINGLE: 24.76, DATA_PARALLEL: 18.976, MODEL_PARALLEL: 23.7}
"""Mean time of an epoch: 'Single gpu', 'Distributed Data Parallel' and 'Model Parallel' on two GPUs."""
