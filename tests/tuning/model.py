"""User's model with a convolution that channels_last and Fourier transforms apply to."""

from __future__ import annotations

from torch import nn


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 5), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(32, 3))
