"""Lookup of names that users write differently."""

from __future__ import annotations

import pytest

from scalewise.core.specs import matching, unknown

NAMES = ["unet", "U-Net", "VGG16", "ResNet-50", "infiniband-56", "infiniband-100"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("VGG16", "VGG16"),
        ("vgg16", "VGG16"),
        ("vgg-16", "VGG16"),
        ("resnet50", "ResNet-50"),
        ("UNET", "unet"),
        ("u-net", "U-Net"),
        ("u net", None),
        ("vgg61", None),
        ("", None),
    ],
)
def test_case_and_hyphens_are_ignored_unless_names_differ_only_in_them(given: str, expected: str | None) -> None:
    assert matching(given, NAMES) == expected


@pytest.mark.parametrize(
    ("given", "suggestions"),
    [
        ("vgg61", "'VGG16'"),
        ("RESNET-51", "'ResNet-50'"),
        ("infiniband", "'infiniband-56' or 'infiniband-100'"),
        ("InfiniBand", "'infiniband-56' or 'infiniband-100'"),
    ],
)
def test_suggestions_ignore_case(given: str, suggestions: str) -> None:
    assert f"(did you mean {suggestions}?)" in str(unknown("name", given, NAMES))
