"""What a profiled workload weighs, for plans."""

from __future__ import annotations

from itertools import accumulate

from scalewise.plan import Footprint
from scalewise.results.profile import ProfileDocument


def footprint_of(profile: ProfileDocument) -> Footprint:
    """Gradients become ready from the last layer to the first: as measured, else in step with the layers' flops."""
    layers = [layer for layer in reversed(profile.layers) if layer.parameter_bytes]
    sizes = tuple(layer.parameter_bytes for layer in layers) or (profile.parameter_bytes,)
    measured = profile.steps[-1].ready if profile.steps else ()
    ready = measured if len(measured) == len(sizes) else _by_flops(profile)
    return Footprint(
        parameter_bytes=sizes,
        input_bytes=profile.input_bytes,
        target_bytes=0,
        output_bytes=profile.layers[-1].activation_bytes if profile.layers else 0,
        ready=ready,
    )


def _by_flops(profile: ProfileDocument) -> tuple[float, ...]:
    backward = list(reversed(profile.layers))
    total = sum(layer.flops for layer in backward)
    if not total:
        return ()
    done = accumulate(layer.flops for layer in backward)
    return tuple(flops / total for layer, flops in zip(backward, done, strict=True) if layer.parameter_bytes)
