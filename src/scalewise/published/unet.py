"""The survey's comparison of data and model parallelism: one U-Net on one GPU and on two."""

from __future__ import annotations

from scalewise.published.tables import Source

SURVEY = Source(
    citation="the survey's table 2, after Deelvin, Model parallelism vs data parallelism in UNet speedup, "
    "https://medium.com/deelvin-machine-learning/model-parallelism-vs-data-parallelism-in-unet-speedup-1341bc74ff9e",
    machine="2x RTX 2070 SUPER",
    year=2020,
)
SINGLE, DATA_PARALLEL, MODEL_PARALLEL = "single", "mirrored", "layers"
SURVEY_EPOCH_SECONDS = {SINGLE: 24.76, DATA_PARALLEL: 18.976, MODEL_PARALLEL: 23.7}
"""Mean of an epoch: 'Single gpu', 'Distributed Data Parallel' and 'Model Parallel' on two GPUs."""
