"""The study's linear model (its figure 1): 12,102,220 parameters, little to compute."""

from __future__ import annotations

from torch import nn

from scalewise.data.clip import CLIP_SAMPLES, DIGITS
from scalewise.data.speech import load_speech
from scalewise.workloads.classification import classification_accuracy, classification_loss
from scalewise.workloads.workload import Workload


def build(name: str) -> Workload:
    return Workload(
        name=name,
        model=linear,
        data=load_speech,
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=(1, CLIP_SAMPLES),
        learning_rate=2e-4,
    )


def linear() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(CLIP_SAMPLES, 1000),
        nn.ReLU(),
        nn.Linear(1000, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
        nn.Sigmoid(),
        nn.Linear(10, DIGITS),
    )
