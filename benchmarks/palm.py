"""PaLM's layout, simulated: two TPU v4 pods, data parallel across, tensor x data parallel inside, no pipeline.

    python benchmarks/palm.py

One constant is not in any data sheet: the share of the peak that the kernels of a chip reach. It is fitted to another
published run, a dense Transformer of 480 billion parameters on 2,048 TPU v4 chips, whose utilisation including
rematerialisation was 63 % (Google, MLPerf Training 1.1, 2021): with the constant, the simulation of PaLM's layers on
that many chips reaches 63 %. The prediction for two pods is then compared with the reported 57.8 %. Memory is not
checked, because PaLM shards its weights inside a pod, which `hybrid` does not.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from time import process_time

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.predictor import Predictor
from scalewise.predict.simulator import OverlapModel
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.plan import Footprint, SplittableLayer

LAYERS, WIDTH, FEED_FORWARD, HEADS, HEAD_WIDTH, VOCABULARY, TOKENS = 118, 18_432, 73_728, 48, 256, 256_000, 2_048
"""Sizes of PaLM 540B: A. Chowdhery et al. 2022, table 1 and section 2; one key and one value head, SwiGLU, shared
embeddings."""
SHARING, PODS, CHIPS, SEQUENCES = 12, 2, 6_144, 2_048
BF16 = 2
REPORTED, REPORTED_TOKENS_PER_SECOND = 0.578, 238_300
REFERENCE_CHIPS, REFERENCE = 2_040, 0.63
"""Chips of the reference run: 170 groups of 12, the multiple of 12 closest to 2,048."""
RECOMPUTED = 57.8 / 46.2
"""Hardware flops divided by model flops, from the two reported utilisations: backward recomputes part of forward."""
REPORTED_WEAK_SCALING = 0.97
"""Throughput of two pods divided by twice that of one pod."""
OVERLAP = OverlapModel(1.0, source="XLA overlaps collectives between groups with backward; assumed")


def matrices() -> tuple[SplittableLayer, ...]:
    """Matrices of all layers. Attention and feed-forward share their input and add their outputs: one sum per layer."""
    layers = []
    for layer in range(LAYERS):
        wide = 2 * FEED_FORWARD + HEADS * HEAD_WIDTH + 2 * HEAD_WIDTH
        narrow = FEED_FORWARD + HEADS * HEAD_WIDTH
        passed = TOKENS * WIDTH * BF16
        first = SplittableLayer(
            f"{layer}.in", "columns", str(layer), wide, WIDTH, 1, layer, passed, 0, True, 2 * TOKENS * wide * WIDTH
        )
        attention = 2 * 2 * TOKENS * TOKENS * HEADS * HEAD_WIDTH
        flops = 2 * TOKENS * narrow * WIDTH + attention
        layers += [
            first,
            SplittableLayer(f"{layer}.out", "rows", str(layer), WIDTH, narrow, 1, -1 - layer, 0, passed, True, flops),
        ]
    head = SplittableLayer("head", "columns", "head", VOCABULARY, WIDTH, 1, LAYERS, TOKENS * WIDTH * BF16, 0, True, 0)
    return (*layers, replace(head, flops=2 * TOKENS * VOCABULARY * WIDTH))


def profile(efficiency: float) -> ProfileDocument:
    """Profile of one chip with unlimited memory that spends its time only on matrix multiplications."""
    layers = matrices()
    forward = sum(layer.flops for layer in layers)
    seconds = RECOMPUTED * 3 * forward / (efficiency * 275e12)
    sizes = [BF16 * layer.columns * layer.rows for layer in reversed(layers)]
    footprint = Footprint(
        parameter_bytes=tuple(sizes),
        input_bytes=4 * TOKENS,
        target_bytes=4 * TOKENS,
        output_bytes=0,
        parameter_names=tuple(f"{layer.name}.weight" for layer in reversed(layers)),
        matrices=layers,
    )
    return ProfileDocument(
        workload="PaLM 540B",
        device="TPU v4",
        execution="graph",
        samples_per_epoch=SEQUENCES,
        parameter_bytes=sum(sizes),
        layers=(LayerCost(name="all", parameter_bytes=sum(sizes), activation_bytes=0, flops=forward),),
        footprint=asdict(footprint),
        steps=(StepCost(batch=1, forward=seconds / 4, backward=seconds * 3 / 4, update=0, load=0),),
    )


def step_seconds(efficiency: float, chips: int) -> tuple[float, float]:
    """Seconds of a step with four sequences per group, and its seconds of waiting for other chips."""
    predictor = Predictor(profile(efficiency), cluster_of("3072x-tpu-v4"), OVERLAP)
    step = predictor.simulate(Hybrid(tensor=SHARING), chips, SEQUENCES * chips // CHIPS)
    return step.step_seconds, step.timeline.phases.get("reduce", 0.0)


def utilisation(seconds: float, chips: int) -> float:
    flops = RECOMPUTED * 3 * sum(layer.flops for layer in matrices()) * (SEQUENCES * chips // CHIPS)
    return flops / (chips * 275e12) / seconds


def kernel_efficiency() -> float:
    """Kernel efficiency at which the reference run reaches its published utilisation, found by bisection."""
    low, high = 0.3, 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        if utilisation(step_seconds(middle, REFERENCE_CHIPS)[0], REFERENCE_CHIPS) < REFERENCE:
            low = middle
        else:
            high = middle
    return (low + high) / 2


if __name__ == "__main__":
    parameters = sum(layer.columns * layer.rows for layer in matrices())
    print(
        f"PaLM: {parameters / 1e9:.0f} billion parameters; {PODS} pods of {CHIPS // PODS:,} chips, "
        f"{SHARING} chips per model replica"
    )
    efficiency = kernel_efficiency()
    print(
        f"kernel efficiency {efficiency:.1%} of the peak, fitted to the published {REFERENCE:.0%} on "
        f"{REFERENCE_CHIPS:,} chips of one pod"
    )
    started = process_time()
    (one_pod, _), (seconds, waiting) = (step_seconds(efficiency, chips) for chips in (CHIPS // PODS, CHIPS))
    cpu_seconds = process_time() - started
    print(
        f"step time {seconds:.1f} s, {waiting / seconds:.1%} of it waiting for other chips; "
        f"simulated in {cpu_seconds:.2f} s of CPU time"
    )
    for name, simulated, reported in (
        ("hardware utilisation", f"{utilisation(seconds, CHIPS):.1%}", f"{REPORTED:.1%}"),
        ("tokens per second", f"{SEQUENCES * TOKENS / seconds:,.0f}", f"{REPORTED_TOKENS_PER_SECOND:,}"),
        ("weak scaling, two pods", f"{one_pod / seconds:.0%}", f"{REPORTED_WEAK_SCALING:.0%}"),
    ):
        print(f"{name:24}  simulated {simulated:>8}  reported {reported:>8}")
