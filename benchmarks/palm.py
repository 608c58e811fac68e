"""PaLM's layout, simulated: two TPU v4 pods, data parallel across, tensor x data parallel inside, no pipeline.

    python benchmarks/palm.py

One constant is not in any data sheet: the part of the peak that a chip's kernels reach. It is taken from another
published run, a dense Transformer of 480 billion parameters on 2,048 TPU v4 chips, whose utilisation, rematerialisation
included, was 63 % (Google, MLPerf Training 1.1, 2021): the kernels are as good as makes the simulation of PaLM's layers
on that many chips come out there. What is then predicted for two pods is printed beside the 57.8 % that were reported.
Memory is not checked: PaLM shards its weights inside a pod, which `hybrid` does not.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from time import process_time

from scalewise.clusters.catalogue import cluster_of
from scalewise.plan import Footprint, Matrix
from scalewise.prediction.predict import Predictor
from scalewise.results.profile import LayerCost, ProfileDocument, StepCost
from scalewise.simulation.conduct import Conduct
from scalewise.strategies.hybrid import Hybrid

LAYERS, WIDTH, FEED_FORWARD, HEADS, HEAD_WIDTH, VOCABULARY, TOKENS = 118, 18_432, 73_728, 48, 256, 256_000, 2_048
"""A. Chowdhery et al. 2022, table 1 and section 2; one key and one value head, SwiGLU, shared embeddings."""
SHARING, PODS, CHIPS, SEQUENCES = 12, 2, 6_144, 2_048
BF16 = 2
REPORTED, REPORTED_TOKENS_PER_SECOND = 0.578, 238_300
REFERENCE_CHIPS, REFERENCE = 2_040, 0.63
"""170 groups of 12, next to 2,048 chips."""
RECOMPUTED = 57.8 / 46.2
"""Hardware flops over the model's, both utilisations as reported: part of forward once more for backward."""
REPORTED_WEAK_SCALING = 0.97
"""Two pods over twice one pod."""
OVERLAP = Conduct(1.0, 1.0, "XLA overlaps collectives between groups with backward; assumed")


def matrices() -> tuple[Matrix, ...]:
    """Attention and feed-forward take in the same tensor and their results are added up together: one sum a layer."""
    made = []
    for layer in range(LAYERS):
        wide = 2 * FEED_FORWARD + HEADS * HEAD_WIDTH + 2 * HEAD_WIDTH
        narrow = FEED_FORWARD + HEADS * HEAD_WIDTH
        passed = TOKENS * WIDTH * BF16
        into = Matrix(
            f"{layer}.in", "columns", str(layer), wide, WIDTH, 1, layer, passed, 0, True, 2 * TOKENS * wide * WIDTH
        )
        attention = 2 * 2 * TOKENS * TOKENS * HEADS * HEAD_WIDTH
        flops = 2 * TOKENS * narrow * WIDTH + attention
        made += [into, Matrix(f"{layer}.out", "rows", str(layer), WIDTH, narrow, 1, -1 - layer, 0, passed, True, flops)]
    head = Matrix("head", "columns", "head", VOCABULARY, WIDTH, 1, LAYERS, TOKENS * WIDTH * BF16, 0, True, 0)
    return (*made, replace(head, flops=2 * TOKENS * VOCABULARY * WIDTH))


def profile(efficiency: float) -> ProfileDocument:
    """Of one chip with all of the memory in the world, which does nothing but multiply."""
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
    """Of a batch of four sequences for each group, and what of it is waiting for others."""
    predictor = Predictor(profile(efficiency), cluster_of("3072x-tpu-v4"), OVERLAP)
    step = predictor.simulate(Hybrid(tensor=SHARING), chips, SEQUENCES * chips // CHIPS)
    return step.step_seconds, step.timeline.phases.get("reduce", 0.0)


def utilisation(seconds: float, chips: int) -> float:
    flops = RECOMPUTED * 3 * sum(layer.flops for layer in matrices()) * (SEQUENCES * chips // CHIPS)
    return flops / (chips * 275e12) / seconds


def kernels() -> float:
    """By halving: utilisation grows with the kernels."""
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
        f"PaLM: {parameters / 1e9:.0f} billion parameters; {PODS} pods of {CHIPS // PODS:,} chips, {SHARING} to a model"
    )
    found = kernels()
    print(f"kernels at {found:.1%} of the peak: {REFERENCE:.0%} on {REFERENCE_CHIPS:,} chips of one pod, as published")
    begun = process_time()
    (one_pod, _), (seconds, waiting) = (step_seconds(found, chips) for chips in (CHIPS // PODS, CHIPS))
    spent = process_time() - begun
    print(f"a step: {seconds:.1f} s, {waiting / seconds:.1%} of it waiting for others; {spent:.2f} s of CPU time")
    for name, simulated, reported in (
        ("hardware utilisation", f"{utilisation(seconds, CHIPS):.1%}", f"{REPORTED:.1%}"),
        ("tokens per second", f"{SEQUENCES * TOKENS / seconds:,.0f}", f"{REPORTED_TOKENS_PER_SECOND:,}"),
        ("two pods over twice one", f"{one_pod / seconds:.0%}", f"{REPORTED_WEAK_SCALING:.0%}"),
    ):
        print(f"{name:24}  simulated {simulated:>8}  reported {reported:>8}")
