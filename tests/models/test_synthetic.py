"""Parameters and flops are within 1 % of the request for any ratio; impossible requests are explained."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewise.core.errors import UserError
from scalewise.models.describe import describe
from scalewise.models.resolve import resolve
from scalewise.models.synthetic import fit_sizes


@pytest.mark.parametrize(
    ("parameters", "flops"), [(5e7, 1e8), (1e6, 1e7), (1e5, 1e9), (1e9, 1e5), (1e4, 1e4), (12_102_220, 24_202_200)]
)
def test_the_model_has_the_requested_parameters_and_flops(parameters: float, flops: float) -> None:
    description = describe(f"synthetic:parameters={parameters:g},flops={flops:g}")
    assert description.parameters == pytest.approx(parameters, rel=0.01)
    assert description.flops_per_sample == pytest.approx(flops, rel=0.01)


@given(
    parameters=st.integers(10_000, 10**10),
    flops_per_parameter=st.floats(0.01, 1_000),
    layers=st.integers(1, 8),
)
def test_sizes_are_found_for_any_ratio(parameters: int, flops_per_parameter: float, layers: int) -> None:
    flops = max(10_000, int(parameters * flops_per_parameter))
    sizes = fit_sizes("synthetic", parameters, flops, layers)
    assert sizes.parameters == pytest.approx(parameters, rel=0.01)
    assert sizes.flops == pytest.approx(flops, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("parameters=0", "parameters must be at least 1, not 0"),
        ("flops=-5", "flops must be at least 1, not -5"),
        ("layers=0", "layers must be at least 1, not 0"),
        (
            "parameters=100,flops=1e6",
            "no 8 linear layers have 100 parameters and 1,000,000 flops within 1 %; raise both",
        ),
        ("parameters=1e4,flops=1e12", r"need 54\.9 GB of activations per sample; raise parameters"),
    ],
)
def test_impossible_sizes_are_explained(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(f"synthetic:{options}")
