"""Count the operators and parameters of the models in the published tables, for scoring without torch.

    python benchmarks/count_published_models.py src/scalewise/published/operator_counts.json.gz

Takes about two minutes on one core; needs no GPU. Run it again when counting changes.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalewise.models.operator_counts import count_batches
from scalewise.models.published_cnns import TORCHVISION, InceptionV3, InceptionV4, ResNet
from scalewise.models.published_transformers import TRANSFORMERS, Transformer, TransformerSize, counted_token_loss
from scalewise.predict.operators import BatchLine, to_row

TENSORFLOW: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "alexnet": (TORCHVISION["alexnet"], 224),
    "vgg16": (TORCHVISION["vgg16"], 224),
    "resnet50": (lambda: ResNet((3, 4, 6, 3), stride_in_1x1=True), 224),
    "resnet152": (lambda: ResNet((3, 8, 36, 3), stride_in_1x1=True), 224),
    "inception3": (InceptionV3, 299),
    "inception4": (InceptionV4, 299),
}
EAGER_ATTENTION = {
    "bert_large": TRANSFORMERS["bert_large"],
    "gpt2_large": TRANSFORMERS["gpt2_large"],
    "gpt3_xl": TransformerSize(24, 3072, 24, 12288, 50257, 2048, activation="gelu_tanh_unfused"),
    "gpt3_27": TransformerSize(32, 2560, 32, 10240, 50257, 2048, activation="gelu_tanh_unfused"),
    "opt_13": TransformerSize(24, 2048, 32, 8192, 50272, 2048, activation="relu"),
    "switchxl4": TransformerSize(24, 1024, 32, 16384, 32128, 512, "switch", experts=4, activation="relu"),
}


def class_loss(logits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


def images(side: int, batch: int) -> Tensor:
    return torch.zeros(batch, 3, side, side)


def tokens(length: int, batch: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


def transformer(size: TransformerSize, **options: Any) -> BatchLine:
    return count_batches(lambda: Transformer(size), partial(tokens, size.sequence), **options)


def lines() -> Iterator[tuple[str, BatchLine]]:
    for name, make in TORCHVISION.items():
        yield f"torchvision/{name}", count_batches(make, partial(images, 224), loss=class_loss, optimizer=None)
    for name, (make, side) in TENSORFLOW.items():
        for execution in ("eager", "compiled"):
            line = count_batches(make, partial(images, side), loss=class_loss, optimizer="sgd", execution=execution)
            yield f"tensorflow {execution}/{name}", line
    for name, size in EAGER_ATTENTION.items():
        size = replace(size, attention="eager")
        yield f"forward/{name}", transformer(size, backward=False)
        if name in ("bert_large", "gpt2_large"):
            yield f"forward compiled/{name}", transformer(size, backward=False, execution="compiled")
            yield f"training/{name}", transformer(size, optimizer=None)
    small, large = TRANSFORMERS["llama-3.1-8b"], TRANSFORMERS["llama-3.1-70b"]
    for name, size in (
        ("tp1/llama-3.1-8b", replace(small, checkpointing="selective")),
        ("tp8/llama-3.1-8b", replace(small, checkpointing="selective", tensor_parallel=8)),
        ("tp8/llama-3.1-70b", replace(large, checkpointing="full", tensor_parallel=8)),
    ):
        for execution in ("eager", "compiled"):
            line = transformer(size, optimizer=None, loss=counted_token_loss, dtype=torch.bfloat16, execution=execution)
            yield f"torchtitan {execution} {name}", line


def main() -> None:
    document = {}
    for name, line in lines():
        print(name, len(line.low), file=sys.stderr, flush=True)
        document[name] = {
            "batches": [line.low_batch, line.high_batch],
            "operators": [[to_row(low), to_row(high)] for low, high in zip(line.low, line.high, strict=True)],
        }
    write(Path(sys.argv[1]), document)
    write(Path(sys.argv[1]).with_name("torchvision_parameters.json.gz"), parameter_counts())


def parameter_counts() -> dict[str, list[int]]:
    """Number of elements of every parameter of the torchvision models, in the order of the model."""
    with torch.device("meta"):
        return {name: [parameter.numel() for parameter in make().parameters()] for name, make in TORCHVISION.items()}


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main()
