"""Names become workloads; what is wrong with a name is answered with what would be right."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from scalewise.errors import UserError
from scalewise.workloads.catalogue import CATALOGUE
from scalewise.workloads.resolve import resolve


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_name_of_the_catalogue_is_built_with_its_options(name: str) -> None:
    entry = CATALOGUE[name]
    assert list(inspect.signature(import_module(entry.module).build).parameters) == ["name", *entry.options]
    assert resolve(name).name == name
    for preset in entry.presets.values():
        assert preset.keys() <= entry.options.keys()


def test_the_catalogue_needs_no_torch() -> None:
    code = "import sys, scalewise.workloads.catalogue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_are_read_as_their_type_and_kept_in_the_name() -> None:
    workload = resolve("unet:size=32,norm=batch")
    assert workload.name == "unet:size=32,norm=batch"
    assert workload.input_shape == (1, 32, 32)


def test_a_preset_gives_way_to_what_is_written_beside_it() -> None:
    assert resolve("unet:full").input_shape == (1, 256, 256)
    assert resolve("unet:size=64,full").input_shape == (1, 64, 64)
    assert resolve("unet:size=64,full").name == "unet:size=64,full"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linaer", r"unknown workload 'linaer' \(did you mean 'linear'\?\); valid: linear, conv, unet, transformer"),
        ("", "unknown workload ''"),
        ("nothing:width=3", "unknown workload 'nothing:width=3'"),
        (
            "unet:widht=3",
            r"unknown option of 'unet' 'widht' \(did you mean 'width'\?\); valid: width, depth, norm, size",
        ),
        ("unet:full=yes", "unknown option of 'unet' 'full'"),
        ("linear:width=3", "'linear' has no options; 'width' was given"),
        ("unet:width=many", "option width of 'unet:width=many' must be a whole number like 8, not 'many'"),
        ("unet:width=1.5", "must be a whole number like 8, not '1.5'"),
        ("unet:width=inf", "must be a whole number like 8, not 'inf'"),
        ("unet:width", "must be a whole number like 8, not 'true'"),
        ("unet:width=0", "width and depth must be at least 1, not 0 and 3"),
        ("unet:norm=layer", "norm must be none or batch, not 'layer'"),
        ("unet:size=36", "size must be a multiple of 8, to be halved 3 times, not 36"),
        ("transformer:heads=3", "3 heads do not divide a width of 128"),
        ("transformer:layers=0", "layers must be at least 1, not 0"),
        (
            "hf:bert-bass-uncased",
            r"unknown model of the zoo 'bert-bass-uncased' \(did you mean 'bert-base-uncased'\?\)",
        ),
        ("hf", "must name one model, as in hf:gpt2; valid: bert-base-uncased"),
    ],
)
def test_a_wrong_name_or_option_is_answered_with_the_valid_ones(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(text)


def test_a_built_in_workload_takes_no_input_shape() -> None:
    with pytest.raises(UserError, match="'linear' knows what goes in and out"):
        resolve("linear", "1x12000", 10)
