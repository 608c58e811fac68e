"""What a workload weighs, for plans."""

from __future__ import annotations

import torch
from torch import nn

from scalewise.data.data import Data
from scalewise.plan import Footprint


def footprint_of(data: Data, model: nn.Module) -> Footprint:
    """`model` is the one being trained: one sample goes through it to see what comes out."""
    inputs, targets = data.example()
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    with torch.no_grad():
        outputs = model(inputs.unsqueeze(0).to(device))
    model.train(was_training)
    return Footprint(
        parameter_bytes=tuple(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad),
        input_bytes=inputs.nbytes,
        target_bytes=targets.nbytes,
        output_bytes=outputs.nbytes,
    )
