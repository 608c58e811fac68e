"""What ranks hold that have a part of the layers each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalewise.prediction.held import Held, Layers, Made, Run
from scalewise.strategies.cuts import Cut


@dataclass(frozen=True)
class _Share:
    """A part's, of one layer's bytes."""

    weights: float
    put_out: float
    taken_in: float


def held_of_parts(cuts: dict[str, Cut], part: int, run: Run, layers: Layers) -> Held:
    """Cut layers hold a part of their weights; what lies between columns and rows is in parts too, and so is its
    gradient. What rows put out, and the gradient of what columns take in, is there twice while it is added up."""
    samples = -(-run.batch // run.accumulate)
    matrices = {matrix.name: matrix for matrix in run.footprint.matrices if matrix.name in cuts}
    shares = _shares_of(cuts, part, layers)
    put_out, taken_in = [share.put_out for share in shares], [share.taken_in for share in shares]
    own = []
    for at, (layer, share) in enumerate(zip(layers, shares, strict=True)):
        added_forward = added_backward = 0
        if matrix := matrices.get(layer.module):
            rows = cuts[matrix.name].role == "rows"
            added_forward = samples * matrix.output_bytes if rows else 0
            added_backward = samples * matrix.input_bytes if not rows and matrix.input_learns else 0
        # What a layer makes in backward is the gradient of what it takes in.
        forward = _in_parts(layer.forward_bytes, layer.forward_of, at, put_out, share, layer.copied_bytes[0])
        backward = _in_parts(layer.backward_bytes, layer.backward_of, at, taken_in, share, layer.copied_bytes[1])
        own.append(
            replace(
                layer,
                parameters=tuple(round(size * share.weights) for size in layer.parameters),
                frozen_bytes=round(layer.frozen_bytes * share.weights),
                kept_bytes=round(layer.kept_bytes * share.put_out),
                forward_bytes=forward + added_forward,
                backward_bytes=backward + added_backward,
            )
        )
    return Held(tuple(own), run.inputs(samples))


def _shares_of(cuts: dict[str, Cut], part: int, layers: Layers) -> list[_Share]:
    shares = []
    between = 1.0
    for layer in layers:
        if not (cut := cuts.get(layer.module)):
            shares.append(_Share(1.0, between, between))
            continue
        own = cut.sizes[part] / sum(cut.sizes)
        columns = cut.role == "columns"
        between = own if columns else 1.0
        shares.append(_Share(own, between, 1.0 if columns else own))
    return shares


def _in_parts(whole: int, made: Made, at: int, shares: Sequence[float], own: _Share, copied: int) -> int:
    rest = whole - copied - sum(nbytes for _, nbytes in made)
    others = sum(nbytes * (own.put_out if by == at else shares[by]) for by, nbytes in made)
    return round(rest * shares[at] + others + copied * own.taken_in)
