"""Names are resolved to workloads; wrong names and options are reported with the valid ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from scalewise.core.errors import UserError
from scalewise.models.catalogue import CATALOGUE, PUBLISHED, named
from scalewise.models.describe import describe
from scalewise.models.published_cnns import TORCHVISION
from scalewise.models.published_transformers import TRANSFORMERS
from scalewise.models.resolve import resolve


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_workload_of_the_catalogue_is_built_with_its_options(name: str) -> None:
    entry = CATALOGUE[name]
    assert list(inspect.signature(import_module(entry.module).build).parameters) == ["name", *entry.options]
    assert resolve(name).name == name
    for preset in entry.presets.values():
        assert preset.keys() <= entry.options.keys()


def test_the_catalogue_needs_no_torch() -> None:
    code = "import sys, scalewise.models.catalogue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_are_parsed_and_kept_in_the_name() -> None:
    workload = resolve("unet:size=32,norm=batch")
    assert workload.name == "unet:size=32,norm=batch"
    assert workload.input_shape == (1, 32, 32)


def test_explicit_options_override_a_preset() -> None:
    assert resolve("unet:full").input_shape == (1, 256, 256)
    assert resolve("unet:size=64,full").input_shape == (1, 64, 64)
    assert resolve("unet:size=64,full").name == "unet:size=64,full"


@pytest.mark.parametrize(
    ("text", "name"), [("Linear", "linear"), ("UNet:size=32,norm=batch", "unet:size=32,norm=batch")]
)
def test_capitals_in_names_do_not_matter(text: str, name: str) -> None:
    assert (resolve(text).name, named(text)) == (name, name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("VGG-16", "vgg16"),
        ("bert-base", "bert_base"),
        ("VGG16", "VGG16"),
        ("deepspeech2", "DeepSpeech2"),
        ("u-net", "U-Net"),
        ("a.py:F", "a.py:F"),
    ],
)
def test_published_models_are_named_as_in_their_papers(text: str, name: str) -> None:
    assert named(text) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linaer", r"unknown workload 'linaer' \(did you mean 'linear'\?\); valid: linear, conv, unet, transformer"),
        ("", "unknown workload ''"),
        ("VGG16", "VGG16 cannot be run, because only its outline is known; run 'vgg16', or predict it"),
        ("deepspeech2", "DeepSpeech2 cannot be run, because only its outline is known; advise can predict it"),
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
        ("unet:size=36", "size must be a multiple of 8 to be halved 3 times, not 36"),
        ("transformer:heads=3", "width must be a multiple of heads, but 128 is not a multiple of 3"),
        ("transformer:layers=0", "layers must be at least 1, not 0"),
        (
            "hf:bert-bass-uncased",
            r"unknown transformers model 'bert-bass-uncased' \(did you mean 'bert-base-uncased'\?\)",
        ),
        ("hf", "must name one model, as in hf:gpt2; valid: bert-base-uncased"),
    ],
)
def test_a_wrong_name_or_option_is_refused_with_the_valid_ones(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(text)


def test_a_built_in_workload_takes_no_input_shape() -> None:
    with pytest.raises(UserError, match="'linear' defines its input shape and classes"):
        resolve("linear", "1x12000", 10)


def test_the_list_names_all_that_are_defined() -> None:
    assert set(PUBLISHED) == {*TORCHVISION, *TRANSFORMERS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("VGG-16", 138_357_544),
        ("mobilenet_v2", 3_504_872),
        ("gpt2", 124_439_808),
        ("llama-2-7b", 6_738_415_616),
    ],
)
def test_parameters_are_as_published(name: str, parameters: int) -> None:
    assert describe(resolve(name)).parameters == parameters


def test_options_are_refused() -> None:
    with pytest.raises(UserError, match="has no options"):
        resolve("resnet18:width=2")
