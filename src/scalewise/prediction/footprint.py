"""What a profiled workload weighs, for plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scalewise.errors import UserError, in_our_words
from scalewise.plan import Footprint, Section
from scalewise.results.profile import LayerCost, ProfileDocument


def footprint_of(profile: ProfileDocument) -> Footprint:
    """Gradients become ready as measured, else from the last layer to the first in step with the layers' flops."""
    if profile.footprint:
        known = _read(profile)
        return replace(known, ready=_measured(profile, len(known.parameter_bytes)))
    layers = [layer for layer in reversed(profile.layers) if layer.parameter_bytes]
    sizes = tuple(layer.parameter_bytes for layer in layers) or (profile.parameter_bytes,)
    return Footprint(
        parameter_bytes=sizes,
        input_bytes=profile.input_bytes,
        target_bytes=0,
        output_bytes=profile.layers[-1].activation_bytes if profile.layers else 0,
        ready=_measured(profile, len(sizes)) or _by_flops(profile),
        sections=_sections(profile),
    )


def _sections(profile: ProfileDocument) -> tuple[Section, ...]:
    """As if every layer gave what it puts out to the next one only; none where nobody knows what that is."""
    if not any(layer.activation_bytes for layer in profile.layers):
        return ()
    return tuple(
        Section(
            name=layer.name,
            flops=layer.flops,
            parameter_bytes=layer.parameter_bytes,
            kept_bytes=layer.activation_bytes,
            passed_bytes=(layer.activation_bytes,),
            returned_bytes=(layer.activation_bytes,),
        )
        for layer in profile.layers
    )


_READ: dict[int, tuple[dict[str, Any], Footprint]] = {}
"""The latest, by the identity of what was read: copies of a profile share it, and many predictions ask."""
MOST_KEPT = 16


def _read(profile: ProfileDocument) -> Footprint:
    kept = _READ.get(id(profile.footprint))
    if kept is None:
        if len(_READ) >= MOST_KEPT:
            _READ.clear()
        kept = _READ[id(profile.footprint)] = (profile.footprint, _parsed(profile))
    return kept[1]


def _parsed(profile: ProfileDocument) -> Footprint:
    try:
        return _adapter().validate_python(profile.footprint)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"the profile of {profile.workload} has a footprint that is none: {where}: {in_our_words(first['msg'])}"
        ) from None


@cache
def _adapter() -> TypeAdapter[Footprint]:
    return TypeAdapter(Footprint)


def _measured(profile: ProfileDocument, count: int) -> tuple[float, ...]:
    """Of the largest batch, where launching counts least."""
    return next((step.ready for step in reversed(profile.steps) if len(step.ready) == count), ())


def _by_flops(profile: ProfileDocument) -> tuple[float, ...]:
    return tuple(done for layer, done in done_by_flops(profile.layers) if layer.parameter_bytes)


def done_by_flops(layers: Sequence[LayerCost]) -> list[tuple[LayerCost, float]]:
    """From the last to the first, with the part of backward after which it is through; none where flops are unknown."""
    backward = list(reversed(layers))
    total = sum(layer.flops for layer in backward)
    done = accumulate(layer.flops for layer in backward)
    return [(layer, flops / total) for layer, flops in zip(backward, done, strict=True)] if total else []
