"""Published step times of one GPU and of several GPUs of a host, and of all-reduces between them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.predict.operators import BatchLine, Operator, from_row, in_pure_half, in_tf32
from scalewise.published.tables import FORWARD_SHARE, Source, load_tensorflow

ONE_GPU_SOURCES = {
    "one_gpu_torchvision": Source(
        citation="pytorch-gpu-benchmark, https://github.com/ryujaehun/pytorch-gpu-benchmark and its fork by lamikr",
        machine="six kinds of GPU, seven hosts",
        year=2021,
    ),
    "one_gpu_cnn": Source(
        citation="Lambda, tf_cnn_benchmarks, https://github.com/lambdal/lambda-tensorflow-benchmark",
        machine="twelve kinds of GPU",
        year=2021,
    ),
    "tensorflow_2017": Source(
        citation="TensorFlow performance benchmarks, https://github.com/tensorflow/tensorflow; tensorpack/benchmarks",
        machine="P100 and K80",
        year=2017,
    ),
    "one_gpu_transformers": Source(
        citation="NeuSight, https://github.com/sitar-lab/NeuSight", machine="P4, P100, T4, V100, A100", year=2024
    ),
    "torchtitan": Source(
        citation="torchtitan, https://github.com/pytorch/torchtitan", machine="8 to 256 H100 of 96 GB", year=2024
    ),
}
TENSORFLOW_MODELS = {
    "AlexNet": "alexnet",
    "VGG16": "vgg16",
    "InceptionV3": "inception3",
    "ResNet-50": "resnet50",
    "ResNet-152": "resnet152",
}
CNN_GPUS = {
    "A100 40GB PCIe": "a100-pcie-40gb",
    "Lambda Cloud — RTX A6000": "rtx-a6000",
    "V100 32GB": "v100-pcie-32gb",
}
"""Name of a GPU in the table one_gpu_cnn -> its name in the list of GPUs."""
NVLINK_BYTES_PER_SECOND = 370e9
"""Bandwidth of all-gathers over the NVLink of eight H100."""
PAGEABLE_BYTES_PER_SECOND = 3e9
"""Bandwidth of copies from pageable host memory over PCIe 3."""
IMAGE_BYTES = 4 * 3 * 224 * 224


@dataclass(frozen=True)
class OneGpuCell:
    """One measured step on one GPU."""

    table: str
    gpu: str
    """Name or alias of the GPU in `scalewise list gpus`."""
    host: str
    """Machine and software. Cells of one host share the same systematic error."""
    model: str
    precision: str
    batch: int
    seconds: float
    operators: str
    """Key of the operator counts in operator_counts.json.gz."""
    execution: Literal["eager", "graph", "compiled"] = "eager"
    power_W: float | None = None
    """Power limit if it differs from the GPU's default; None otherwise."""
    memory_GBps: float | None = None
    communication_bytes: float = 0.0
    """Bytes per step that tensor parallelism sends without overlap."""
    copied_bytes: float = 0.0
    """Bytes of input that each step copies from pageable host memory."""

    @property
    def transfer_seconds(self) -> float:
        """Seconds per step of communication and of input copies, which are not operators of the model."""
        return self.communication_bytes / NVLINK_BYTES_PER_SECOND + self.copied_bytes / PAGEABLE_BYTES_PER_SECOND

    def operator_list(self) -> list[Operator]:
        """Operators of the step, in the precision of the cell."""
        operators = operator_lines()[self.operators].at(self.batch)
        if self.precision in ("fp16", "bf16"):
            return in_pure_half(operators, "fp16" if self.precision == "fp16" else "bf16")
        return in_tf32(operators) if self.precision == "tf32" else operators


@cache
def operator_lines() -> dict[str, BatchLine]:
    """Operator counts of the published models, written by benchmarks/count_published_models.py."""
    with (files(__package__) / "operator_counts.json.gz").open("rb") as raw:
        document = json.loads(gzip.decompress(raw.read()))
    return {
        name: BatchLine(
            entry["batches"][0],
            entry["batches"][1],
            tuple(from_row(low) for low, _ in entry["operators"]),
            tuple(from_row(high) for _, high in entry["operators"]),
        )
        for name, entry in document.items()
    }


def compressed_rows(name: str) -> Iterator[dict[str, str]]:
    """Read the rows of a compressed table of the package."""
    with (files(__package__) / name).open("rb") as raw:
        yield from csv.DictReader(io.StringIO(gzip.decompress(raw.read()).decode()))


@cache
def torchvision_cells() -> tuple[OneGpuCell, ...]:
    """Quiet cells in fp32 (TF32 on the A100) and fp16; forward, loss and backward, without the optimizer."""
    return tuple(
        OneGpuCell(
            table="one_gpu_torchvision",
            gpu=row["gpu"],
            host=f"{row['gpu']} {row['run']}",
            model=row["model"],
            precision="tf32" if row["precision"] == "fp32" and row["gpu"].startswith("A100") else row["precision"],
            batch=int(row["batch"]),
            seconds=float(row["milliseconds"]) / 1e3,
            operators=f"torchvision/{row['model']}",
            copied_bytes=0.0 if row["input_on_gpu"] == "1" else float(row["batch"]) * IMAGE_BYTES,
        )
        for row in compressed_rows("one_gpu_torchvision.csv.gz")
        if row["noisy"] == "0" and row["precision"] in ("fp32", "fp16")
    )


@cache
def cnn_cells() -> tuple[OneGpuCell, ...]:
    """TensorFlow CNNs; without the MAX-Q laptop GPUs, whose specification depends on the laptop."""
    cells = []
    for row in compressed_rows("one_gpu_cnn.csv.gz"):
        if "MAX-Q" in row["gpu"]:
            continue
        gpu = CNN_GPUS.get(row["gpu"], row["gpu"])
        ampere = re.search(r"A100|A6000|30[89]0", row["gpu"])
        cells.append(
            OneGpuCell(
                table="one_gpu_cnn",
                gpu=gpu,
                host=row["gpu"],
                model=row["model"],
                precision="tf32" if ampere and row["precision"] == "fp32" else row["precision"],
                batch=int(row["batch"]),
                seconds=int(row["batch"]) / float(row["images_per_second"]),
                operators=f"tensorflow compiled/{row['model']}",
                execution="compiled",
            )
        )
    return tuple(cells)


@cache
def tensorflow_cells() -> tuple[OneGpuCell, ...]:
    """One-GPU rows of TensorFlow's 2017 benchmarks, in fp32."""
    return tuple(
        OneGpuCell(
            table="tensorflow_2017",
            gpu="p100-sxm2" if "p100" in row.machine else "k80",
            host=f"{row.source} {row.machine}",
            model=TENSORFLOW_MODELS[row.model],
            precision="fp32",
            batch=row.batch_per_device,
            seconds=row.batch_per_device / row.images_per_second,
            operators=f"tensorflow eager/{TENSORFLOW_MODELS[row.model]}",
            execution="graph",
        )
        for row in load_tensorflow()
        if row.devices == 1 and row.data == "synthetic"
    )


@cache
def transformer_cells() -> tuple[OneGpuCell, ...]:
    """Whole transformers in fp32 with eager attention: forward, forward compiled, and forward with backward."""
    return tuple(
        OneGpuCell(
            table="one_gpu_transformers",
            gpu=row["device"],
            host=row["device"],
            model=f"{row['model']} {row['mode']}",
            precision="fp32",
            batch=int(row["batch"]),
            seconds=float(row["seconds"]),
            operators=f"{row['mode']}/{row['model']}",
            execution="compiled" if "compiled" in row["mode"] else "eager",
        )
        for row in compressed_rows("one_gpu_transformers.csv.gz")
    )


@cache
def torchtitan_cells() -> tuple[OneGpuCell, ...]:
    """Llama 3.1 in bf16 on many GPUs, one GPU's share: sharding is hidden behind compute, tensor parallelism is not."""
    cells = []
    for row in compressed_rows("torchtitan.csv.gz"):
        if row["precision"] != "bf16":
            continue
        parallel, batch, sequence = int(row["tensor"]), int(row["local_batch"]), int(row["sequence"])
        name = row["model"].lower().replace(" ", "-")
        execution: Literal["eager", "compiled"] = "compiled" if row["compiled"] == "1" else "eager"
        tokens = batch * sequence
        layers, hidden = (32, 4096) if "8b" in name else (80, 8192)
        collectives = 8 if row["checkpointing"] != "full" else 10
        sent = 0.0 if parallel == 1 else collectives * layers * tokens * hidden * 2 * (parallel - 1) / parallel
        cells.append(
            OneGpuCell(
                table="torchtitan",
                gpu="h100",
                host="torchtitan",
                model=f"{name} tp{parallel} {execution}{' async' if row['async_tensor'] == '1' else ''}",
                precision="bf16",
                batch=batch,
                seconds=tokens / (float(row["tokens_per_second_per_gpu"]) * parallel),
                operators=f"torchtitan {execution} tp{parallel}/{name}",
                execution=execution,
                power_W=500.0,
                memory_GBps=2400.0,
                communication_bytes=sent * (0.5 if row["async_tensor"] == "1" else 1.0),
            )
        )
    return tuple(cells)


def one_gpu_tables() -> dict[str, tuple[OneGpuCell, ...]]:
    return {
        "one_gpu_torchvision": torchvision_cells(),
        "one_gpu_cnn": cnn_cells(),
        "tensorflow_2017": tensorflow_cells(),
        "one_gpu_transformers": transformer_cells(),
        "torchtitan": torchtitan_cells(),
    }


DATA_PARALLEL_STEPS = Source(
    citation="pytorch-gpu-benchmark, https://github.com/ryujaehun/pytorch-gpu-benchmark and its fork by lamikr (MIT)",
    machine="A100 (DGX), V100 (DGX Station), TITAN Xp, RTX 2080 Ti, GTX 1080 Ti",
    year=2021,
)
ELEMENT_BYTES = {"fp16": 2, "fp32": 4, "fp64": 8}


@dataclass(frozen=True)
class DataParallelRow:
    """One quiet cell: zero_grad, forward, loss and backward, without the optimizer."""

    model: str
    precision: str
    gpu: str
    devices: int
    batch: int
    """Global batch."""
    seconds: float
    one_gpu_seconds: float
    """Seconds of one GPU at the same batch per device."""

    @property
    def batch_per_device(self) -> int:
        return self.batch // self.devices


@cache
def load_data_parallel() -> tuple[DataParallelRow, ...]:
    """Return the cells whose own time and one-GPU time were measured without disturbance."""
    return tuple(
        DataParallelRow(
            model=row["model"],
            precision=row["precision"],
            gpu=row["gpu"],
            devices=int(row["gpus"]),
            batch=int(row["global_batch"]),
            seconds=float(row["milliseconds"]) / 1e3,
            one_gpu_seconds=float(row["one_gpu_milliseconds"]) / 1e3,
        )
        for row in compressed_rows("data_parallel_torchvision.csv.gz")
        if row["noisy"] == "0" and row["one_gpu_noisy"] == "0"
    )


MODULE_CALLS = {
    "alexnet": 22, "vgg11": 30, "vgg13": 34, "vgg16": 40, "vgg19": 46,
    "vgg11_bn": 38, "vgg13_bn": 44, "vgg16_bn": 53, "vgg19_bn": 62,
    "resnet18": 66, "resnet34": 122, "resnet50": 171, "resnet101": 341, "resnet152": 511,
    "resnext50_32x4d": 171, "resnext101_32x8d": 341, "wide_resnet50_2": 171, "wide_resnet101_2": 341,
    "densenet121": 369, "densenet161": 489, "densenet169": 513, "densenet201": 609,
    "mobilenet_v2": 143, "mnasnet0_5": 143, "mnasnet0_75": 143, "mnasnet1_0": 143, "mnasnet1_3": 143,
    "shufflenet_v2_x0_5": 166, "shufflenet_v2_x1_0": 166, "shufflenet_v2_x1_5": 166, "shufflenet_v2_x2_0": 166,
    "squeezenet1_0": 58, "squeezenet1_1": 58,
}  # fmt: skip
"""Calls of innermost modules in forward, counted in scalewise.models.published_cnns."""
RESNET_MODULES = {
    "resnet18": 52, "resnet34": 92, "resnet50": 126, "resnet101": 245, "resnet152": 364,
    "resnext50_32x4d": 126, "resnext101_32x8d": 245, "wide_resnet50_2": 126, "wide_resnet101_2": 245,
}  # fmt: skip
"""Innermost modules of torchvision's ResNets, whose blocks call one ReLU two or three times."""


@cache
def torchvision_parameters() -> dict[str, list[int]]:
    """Number of elements of every parameter, by model; written by benchmarks/count_published_models.py."""
    with (files(__package__) / "torchvision_parameters.json.gz").open("rb") as raw:
        parameters: dict[str, list[int]] = json.loads(gzip.decompress(raw.read()))
    return parameters


@cache
def data_parallel_profile(row: DataParallelRow) -> ProfileDocument:
    """Return the one-GPU step of a cell's model as a profile, with one layer per parameter."""
    size = ELEMENT_BYTES[row.precision]
    layers = tuple(
        LayerCost(name=f"parameter {number}", parameter_bytes=size * count, activation_bytes=0, flops=1)
        for number, count in enumerate(torchvision_parameters()[row.model], 1)
    )
    step = StepCost(
        batch=row.batch_per_device,
        forward=row.one_gpu_seconds * FORWARD_SHARE,
        backward=row.one_gpu_seconds * (1 - FORWARD_SHARE),
        update=0,
        load=0,
    )
    return ProfileDocument(
        workload=row.model,
        device=row.gpu,
        execution="eager",
        samples_per_epoch=row.batch,
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        input_bytes=IMAGE_BYTES * size // 4,
        layers=layers,
        steps=(step,),
        precision=row.precision,
        module_calls=MODULE_CALLS[row.model],
        modules=RESNET_MODULES.get(row.model, 0),
    )


NCCL = Source(
    citation="vTrain, https://github.com/VIA-Research/vTrain (MIT)",
    machine="8 x A100 with NVSwitch, 8 x V100 with NVLink",
    year=2023,
)
ALL_REDUCE_CLUSTERS = {"A100": "8x-a100-nvlink", "V100": "8x-v100-nvlink"}


@dataclass(frozen=True)
class AllReduceRow:
    gpu: str
    devices: int
    bytes: int
    seconds: float


@cache
def load_all_reduces() -> tuple[AllReduceRow, ...]:
    return tuple(
        AllReduceRow(row["gpu"], int(row["gpus"]), int(row["bytes"]), float(row["microseconds"]) / 1e6)
        for row in compressed_rows("nccl_allreduce.csv.gz")
    )
