"""Text as bytes, cut into samples: from a small grammar, a file, or a folder of .txt files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from scalewise.data.data import Data, DataRequest
from scalewise.data.samples import samples_to_make, samples_to_use
from scalewise.errors import UserError

SAMPLES = 2_000
SUBJECTS = ("the worker", "a server", "the ring", "one device", "the model", "a gradient", "the network", "every batch")
VERBS = ("sends", "waits for", "averages", "updates", "splits", "copies", "measures", "follows")
OBJECTS = ("the weights", "its neighbour", "a layer", "the loss", "two halves", "the next step", "all the data")
ENDINGS = ("", " again", " at once", " in turn", " without a pause", " before the others do")


def load_text(request: DataRequest, context: int, vocabulary: int) -> Data:
    """Samples of `context` bytes; the target of each byte is the one after it."""
    if request.folder is None:
        count = samples_to_make(request, SAMPLES)
        text = generated_text(request.seed, count * context + 1)
        source = "generated text"
    else:
        text = read_text(request.folder)
        available = (len(text) - 1) // context
        if available < 1:
            raise UserError(
                f"'{request.folder}' holds {len(text):,} bytes; one sample of context {context} needs {context + 1:,}"
            )
        count = len(samples_to_use(request, available, str(request.folder)))
        source = f"{count:,} samples of text in {request.folder}"
    tokens = np.frombuffer(text, dtype=np.uint8, count=count * context + 1).astype(np.int64)
    if (largest := int(tokens.max())) >= vocabulary:
        raise UserError(f"the text has byte {largest}, beyond a vocabulary of {vocabulary}; use vocabulary=256")
    inputs, targets = (torch.from_numpy(part.reshape(count, context)) for part in (tokens[:-1], tokens[1:].copy()))
    return Data(source, (inputs, targets))


def generated_text(seed: int, length_bytes: int) -> bytes:
    """Sentences of a small grammar, the same for the same seed."""
    choose = random.Random(seed).choice
    text = bytearray()
    while len(text) < length_bytes:
        sentence = f"{choose(SUBJECTS)} {choose(VERBS)} {choose(OBJECTS)}{choose(ENDINGS)}. "
        text += sentence.capitalize().encode()
    return bytes(text[:length_bytes])


def read_text(place: Path) -> bytes:
    """The bytes of a text file, or of all .txt files of a folder in the order of their names."""
    paths = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    if not paths:
        raise UserError(f"no .txt files in '{place}'")
    try:
        return b"\n".join(path.read_bytes() for path in paths)
    except FileNotFoundError as error:
        raise UserError(f"no such file or folder: '{error.filename}'") from None
    except OSError as error:
        raise UserError(f"cannot read '{error.filename}': {error.strerror}") from None
