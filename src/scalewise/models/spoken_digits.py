"""The study's models of spoken digits: linear and convolutional."""

from __future__ import annotations

from torch import nn

from scalewise.data.speech import CLIP_SAMPLES, DIGITS, load_speech
from scalewise.models.workload import Workload, classification_accuracy, classification_loss


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


def build(name: str) -> Workload:
    model, learning_rate = {"linear": (linear, 2e-4), "conv": (conv, 5e-4)}[name]
    return Workload(
        name=name,
        model=model,
        data=load_speech,
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=(1, CLIP_SAMPLES),
        learning_rate=learning_rate,
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
