"""The study's convolutional model (its figure 2): 376,200 parameters, much to compute."""

from __future__ import annotations

from torch import nn

from scalewise.data.clip import CLIP_SAMPLES, DIGITS
from scalewise.data.speech import load_speech
from scalewise.workloads.classification import classification_accuracy, classification_loss
from scalewise.workloads.workload import Workload


def build(name: str) -> Workload:
    return Workload(
        name=name,
        model=conv,
        data=load_speech,
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=(1, CLIP_SAMPLES),
        learning_rate=5e-4,
    )


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(1, 50, kernel_size=200, padding=100),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(50, 30, kernel_size=100, padding=50),
        nn.ReLU(),
        nn.MaxPool1d(3),
        nn.Conv1d(30, 10, kernel_size=50, padding=25),
        nn.ReLU(),
        nn.MaxPool1d(5),
        nn.Flatten(),
        nn.Linear(2000, 100),
        nn.Sigmoid(),
        nn.Linear(100, DIGITS),
    )
