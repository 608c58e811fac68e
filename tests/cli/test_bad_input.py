"""Bad input gets one sentence with the given and the valid values, exit code 2, and no output files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from scalewise.core.errors import UserError
from scalewise.formats.profile import Profile
from tests.command import Run
from tests.data.conftest import write_wav

TINY = ("train", "tests.tiny:float32", "--batch", "4", "--steps", "3")
WRITERS = ["train linear --trace", "train linear --checkpoint", "profile linear --out"]

REFUSED: dict[str, tuple[str, list[str]]] = {
    "no such workload": ("train lineer", ["unknown workload 'lineer' (did you mean 'linear'?)", "conv, unet, transf"]),
    "no such workload to describe": ("describe lineer", ["unknown workload 'lineer'", "valid: linear, conv"]),
    "a batch to describe without a GPU": (
        "describe linear --batch 8",
        ["--batch 8 has an effect only with --gpu; add --gpu NAME"],
    ),
    "no such GPU to describe": ("describe linear --gpu h2000", ["unknown GPU 'h2000'", "did you mean 'h200'"]),
    "no batch to describe": ("describe linear --gpu h200 --batch 0", ["--batch is 0; it must be at least 1"]),
    "no step to describe": ("describe linear --gpu h200 --step-time 0", ["--step-time is 0; it must be a finite"]),
    "no such workload to profile": ("profile lineer", ["unknown workload 'lineer'", "valid: linear, conv"]),
    "no such strategy": (
        "train linear --strategy singel",
        ["unknown strategy 'singel' (did you mean 'single'?)", "mirrored"],
    ),
    "no such strategy option": (
        "train linear --strategy mirrored:buckets=3",
        ["unknown option of mirrored 'buckets'", "bucket_MB"],
    ),
    "a command misspelt": ("lst workloads", ["no such command 'lst' (did you mean 'list'?); see scalewise --help"]),
    "a flag misspelt": (
        "train linear --bacth 3",
        ["no such option: --bacth (did you mean --batch, --data?); see scalewise train --help"],
    ),
    "no such device kind": ("train linear --device-kind gpu", ["'gpu'", "'auto', 'cpu', 'cuda', 'slice'"]),
    "a kind of device for an experiment that chooses its own": (
        "reproduce stevens --out here --device-kind cpu",
        ["experiment 'stevens' chooses its own devices; leave --device-kind cpu out"],
    ),
    "a seed for an experiment that has its own": (
        "reproduce stevens --out here --seed 1",
        ["experiment 'stevens' has fixed seeds; leave --seed 1 out"],
    ),
    "seeds that are no numbers": (
        "reproduce sync-vs-async --out here --seed 0,one",
        ["--seed is '0,one'; it must be whole numbers from 0, as in --seed 0,1,2"],
    ),
    "no such precision": ("train linear --precision fp64", ["'fp64'", "'fp32', 'tf32', 'bf16'"]),
    "no such execution": ("train linear --execution lazy", ["'lazy'", "'eager', 'graph', 'compile', 'auto'"]),
    "no such optimizer": (
        "train synthetic --optimizer adamm",
        ["unknown optimizer 'adamm' (did you mean 'adam'?)", "momentum"],
    ),
    "no such optimizer to measure with": (
        "measure synthetic --optimizer adamm --out sweep",
        ["unknown optimizer 'adamm' (did you mean 'adam'?)", "momentum"],
    ),
    "no such load to measure with": (
        "measure synthetic --load disk --out sweep",
        ["unknown way to load 'disk'", "auto, device, stream, files"],
    ),
    "no such load option to measure with": (
        "measure synthetic --load stream:threads=2 --out sweep",
        ["unknown option of --load stream 'threads'", "workers"],
    ),
    "no such load to profile with": ("profile synthetic --load disk", ["unknown way to load 'disk'"]),
    "no such workload option": (
        "train unet:widht=3",
        ["unknown option of 'unet' 'widht'", "width, depth, norm, size, full"],
    ),
    "an option where there is none": ("train linear:width=3", ["'linear' has no options; 'width' was given"]),
    "no such load": ("train synthetic --load disk", ["unknown way to load 'disk'", "auto, device, stream, files"]),
    "no such load option": (
        "train synthetic --load stream:threads=2",
        ["unknown option of --load stream 'threads'", "workers"],
    ),
    "a load option that is no number": (
        "train synthetic --load stream:workers=two",
        ["workers is 'two'", "whole number"],
    ),
    "load device takes no options": ("train synthetic --load device:workers=2", ["--load device takes no options"]),
    "load files without files": ("train synthetic --load files", ["--load files needs samples stored in files"]),
    "batch 0": ("train linear --batch 0", ["--batch is 0; it must be at least 1"]),
    "batch -1": ("train linear --batch -1", ["--batch is -1; it must be at least 1"]),
    "batch per device 0": ("train linear --batch-per-device 0", ["--batch-per-device is 0; it must be at least 1"]),
    "batch that is no number": ("train linear --batch ten", ["'--batch'", "not 'ten'"]),
    "batch beyond the data": (
        "train synthetic --samples 10 --batch 11",
        ["--batch is 11 but there are only 10 samples"],
    ),
    "both batches": (
        "train linear --batch 8 --batch-per-device 4",
        ["--batch 8 and --batch-per-device 4 exclude each other"],
    ),
    "profile batch 0": ("profile synthetic --batch 10,0", ["--batch is '10,0'", "whole numbers from 1"]),
    "profile batch beyond the data": ("profile synthetic --samples 5 --batch 6", ["--batch is 6 but there are only 5"]),
    "epochs and steps": (
        "train linear --epochs 2 --steps 3",
        ["--epochs 2 and --steps 3 exclude each other; give one"],
    ),
    "epochs 0": ("train linear --epochs 0", ["--epochs is 0; it must be at least 1"]),
    "steps 0": ("train linear --steps 0", ["--steps is 0; it must be at least 1"]),
    "accumulate 0": ("train linear --accumulate 0", ["--accumulate is 0; it must be at least 1"]),
    "learning rate 0": (
        "train linear --learning-rate 0",
        ["--learning-rate is 0.0; it must be a finite number above 0"],
    ),
    "learning rate nan": (
        "train linear --learning-rate nan",
        ["--learning-rate is nan; it must be a finite number above 0"],
    ),
    "an infinite learning rate": (
        "train linear --learning-rate inf",
        ["--learning-rate is inf; it must be a finite number above 0"],
    ),
    "an infinite timeout": ("train linear --timeout inf", ["a timeout of inf s is not possible"]),
    "a timeout that is no number": ("train linear --timeout nan", ["a timeout of nan s is not possible"]),
    "a slow rank at nan": (
        "train linear --strategy mirrored --devices 2 --slow 1=nan",
        ["cannot slow down rank 1 to a share of nan"],
    ),
    "an infinite interval": (
        "measure synthetic --out sweep --interval inf",
        ["--interval is inf; it must be a finite number above 0"],
    ),
    "a budget that is no number": (
        "measure synthetic --out sweep --budget nan",
        ["--budget is nan; it must be a finite number above 0"],
    ),
    "an infinite total budget": (
        "measure synthetic --out sweep --budget-total inf",
        ["--budget-total is inf; it must be a finite number above 0"],
    ),
    "overwrite without a checkpoint": ("train linear --overwrite", ["--overwrite needs --checkpoint FILE"]),
    "resume and overwrite": (
        "train linear --checkpoint x --resume --overwrite",
        ["--resume and --overwrite exclude each other"],
    ),
    "two profiles to advise with": (
        "advise --profile a.json --profile b.json",
        ["--profile is given 2 times ('a.json', 'b.json'); give it once"],
    ),
    "tune without time": ("tune linear --time-limit 0", ["--time-limit is 0; it must be a number of seconds above 0"]),
    "tune with batch 0": ("tune linear --batch 0", ["--batch is 0; it must be at least 1"]),
    "tune an unknown workload": ("tune lineal", ["unknown workload 'lineal' (did you mean 'linear'?)"]),
    "tuned beside an option that tune chooses": (
        "train linear --tuned --execution compile",
        ["--tuned chooses --execution, but --execution compile is given; leave one out"],
    ),
    "a seed too large": (f"train linear --seed {2**64}", [f"--seed is {2**64}"]),
    "a negative seed": ("train linear --seed -1", ["--seed is -1"]),
    "more samples than any workload has": (
        "train synthetic --samples 999999999999 --steps 1",
        ["--samples is 999,999,999,999; it must be at most 1,000,000,000"],
    ),
    "a link too fast": (
        "train linear --strategy mirrored --devices 2 --hosts 2 --link 99999999gbit",
        ["link '99999999gbit' is too fast to emulate; valid: up to 1000gbit"],
    ),
    "too many devices": (
        "train linear --strategy mirrored --devices 65",
        ["65 devices are too many for one machine; valid: 1 to 64"],
    ),
    "hosts without a link": (
        "train linear --strategy mirrored --devices 2 --hosts 2",
        ["2 emulated hosts need a link speed; add for example --link 1gbit"],
    ),
    "restarts without a checkpoint": ("train linear --max-restarts 2", ["--max-restarts needs --checkpoint FILE"]),
    "fewer than no restarts": ("train linear --max-restarts -1", ["--max-restarts is -1; it must be 0 or more"]),
    "fewer devices without restarts": ("train linear --min-devices 1", ["--min-devices needs --max-restarts N"]),
    "restarts of an asynchronous run": (
        "train linear --strategy parameter-server-async --checkpoint x --max-restarts 1",
        ["--max-restarts is not possible with parameter-server-async"],
    ),
    "an interval that is no number": (
        "train linear --checkpoint x --checkpoint-every often",
        ["--checkpoint-every is 'often'; it must be a whole number of at least 1, or auto"],
    ),
    "no checkpoints to keep": (
        "train linear --checkpoint x --keep-checkpoints 0",
        ["--keep-checkpoints is 0; it must be 1 to 100"],
    ),
    "samples 0": ("train synthetic --samples 0", ["--samples must be at least 1, not 0"]),
    "devices 0": ("train linear --devices 0", ["devices cannot be 0; valid: 1 or more"]),
    "hosts 0": ("train linear --hosts 0", ["hosts cannot be 0"]),
    "several devices for single": (
        "train linear --devices 2",
        ["'single' runs on one device, --devices is 2", "mirrored"],
    ),
    "a slow rank of one": ("train linear --slow 0=0.5", ["--slow needs several devices", "remove --slow"]),
    "more CUDA devices than there are": (
        "train linear --strategy mirrored --device-kind cuda --devices 60",
        ["60 CUDA devices requested, but this machine has", "use --device-kind cpu"],
    ),
    "tf32 on the CPU": (
        "train synthetic --device-kind cpu --precision tf32",
        ["tf32 needs a CUDA device", "fp32, bf16"],
    ),
    "a graph on the CPU": (
        "train synthetic --device-kind cpu --execution graph",
        ["--execution graph is not possible"],
    ),
    "resume without a checkpoint": ("train linear --resume", ["--resume needs --checkpoint FILE"]),
    "checkpoint-every without one": (
        "train linear --checkpoint-every 5",
        ["--checkpoint-every needs --checkpoint FILE"],
    ),
    "checkpoint-every 0": ("train linear --checkpoint x --checkpoint-every 0", ["--checkpoint-every is 0"]),
    "a missing data folder": ("train linear --data /no/where", ["--data is '/no/where', which does not exist"]),
    "data where none is taken": ("train synthetic --data .", ["--data '.'", "generated inputs only"]),
    "a missing text": ("train transformer --data /no/where.txt", ["/no/where.txt"]),
    "a missing image folder": ("train unet --data /no/where", ["/no/where"]),
    "a missing user file": ("train nowhere.py:model", ["no such file: nowhere.py"]),
    "a bad input shape": ("train tests.tiny:float32 --input 3by4", ["--input must be sizes like 3x224x224", "'3by4'"]),
    "no command": ("trane linear", ["no such command 'trane'", "scalewise --help"]),
    "no workload": ("train", ["missing argument 'WORKLOAD'", "scalewise train --help"]),
    "no such flag": ("train linear --batchsize 3", ["no such option: --batchsize"]),
    "no such list": ("list stuff", ["'stuff'", "'strategies', 'workloads'"]),
    "no such data": ("data images", ["'images'", "'speech'"]),
}


NEED_TORCH = {
    "load files without files": "depends on the data",
    "more CUDA devices than there are": "counts GPUs",
    "data where none is taken": "depends on the workload",
}
"""Bad input that is refused only after torch is loaded, and why."""
WITHOUT_TORCH = """
import json, sys
from scalewise.cli import main

class NoTorch:
    def find_spec(self, name, *_):
        assert name.partition(".")[0] != "torch", "torch is imported"

sys.meta_path.insert(0, NoTorch())
for line in json.load(sys.stdin):
    sys.argv = ["scalewise", *line.split()]
    try:
        main()
    except SystemExit as end:
        print(end.code, line)
    except BaseException as error:
        print(error, line)
"""


@pytest.mark.slow
def test_bad_input_is_refused_before_torch_is_imported(folder: Path) -> None:
    """Importing torch takes 2 to 30 seconds."""
    lines = [line for case, (line, _) in REFUSED.items() if case not in NEED_TORCH]
    output = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert output.stdout.splitlines() == [f"2 {line}" for line in lines]
    assert output.stderr.count("\n") == len(lines), output.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("case", REFUSED)
def test_one_sentence(case: str, scalewise: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, parts = REFUSED[case]
    if "tests.tiny" not in line:
        monkeypatch.chdir(folder)
    scalewise(*line.split()).refused(2, *parts)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("channels", "rate", "samples", "expected"),
    [
        (2, 8_000, [1] * 10, "is stereo, 8,000 Hz, 16-bit; a mono, 8,000 Hz, 16-bit wav file is expected"),
        (1, 44_100, [1] * 10, "is mono, 44,100 Hz, 16-bit; a mono, 8,000 Hz, 16-bit wav file is expected"),
        (1, 8_000, [], "has no samples"),
    ],
)
def test_a_wav_of_another_kind(
    channels: int, rate: int, samples: list[int], expected: str, recordings: Path, scalewise: Run, cache: Path
) -> None:
    bad = write_wav(recordings / "7_theo_1.wav", samples, channels=channels, rate=rate)
    scalewise("train", "linear", "--data", recordings, "--batch", 2).refused(2, f"{bad} {expected}")
    assert not cache.exists()


def test_a_truncated_wav(recordings: Path, scalewise: Run, cache: Path) -> None:
    bad = write_wav(recordings / "7_theo_1.wav", [1] * 100)
    bad.write_bytes(bad.read_bytes()[:-50])
    scalewise("train", "linear", "--data", recordings, "--batch", 2).refused(
        2, f"{bad} is truncated: it has 75 of the 100 samples given in its header"
    )
    assert not cache.exists()


def test_a_folder_without_recordings(folder: Path, scalewise: Run) -> None:
    scalewise("train", "linear", "--data", folder).refused(2, f"no wav files in '{folder}'")


def test_a_batch_larger_than_the_recordings(recordings: Path, scalewise: Run) -> None:
    scalewise("train", "linear", "--data", recordings, "--batch", 7).refused(
        2, f"--batch is 7 but there are only 6 samples (6 recordings in {recordings})"
    )


@pytest.mark.parametrize("line", WRITERS)
def test_a_file_in_no_folder_is_refused_before_the_work(line: str, folder: Path, scalewise: Run) -> None:
    path = folder / "missing" / "file"
    scalewise(*line.split(), path).refused(2, f"cannot write {path}: there is no folder {path.parent}")
    scalewise(*line.split(), folder).refused(2, f"cannot write {folder}: it is a folder")


@pytest.mark.parametrize("line", WRITERS)
def test_an_unwritable_folder_is_refused_before_the_work(line: str, read_only_disk: Path, scalewise: Run) -> None:
    path = read_only_disk / "file"
    scalewise(*line.split(), path).refused(2, f"cannot write {path}: the folder {read_only_disk} is not writable")


def test_no_checkpoint_to_resume_from(folder: Path, scalewise: Run) -> None:
    path = folder / "none.safetensors"
    scalewise(*TINY, "--checkpoint", path, "--resume").refused(2, f"there is no checkpoint {path} to resume from")
    assert list(folder.iterdir()) == []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "cut in its header": lambda content: content[:20],
    "empty": lambda _: b"",
    "overwritten": lambda content: b"\xff" * len(content),
    "one flipped bit": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    "another format": lambda _: b"PK\x03\x04 no checkpoint at all",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint(damage: str, folder: Path, scalewise: Run) -> None:
    path = folder / "c.safetensors"
    assert scalewise(*TINY, "--checkpoint", path).code == 0
    damaged = DAMAGES[damage](path.read_bytes())
    path.write_bytes(damaged)
    scalewise(*TINY[:-1], 6, "--checkpoint", path, "--resume").refused(2, f"checkpoint {path} is damaged", "remove it")
    assert path.read_bytes() == damaged
    assert list(folder.iterdir()) == [path]


def test_a_safetensors_file_of_something_else(folder: Path, scalewise: Run) -> None:
    path = folder / "c.safetensors"
    assert scalewise(*TINY, "--checkpoint", path).code == 0
    save_file(load_file(path), path)
    scalewise(*TINY, "--checkpoint", path, "--resume").refused(2, f"{path} is not a checkpoint of Scalewise")


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (["--seed", "1"], "it was written with seed 0, this run has 1"),
        (["--batch", "8"], "it was written with batch 4, this run has 8"),
        (["--optimizer", "sgd"], "it was written with optimizer momentum, this run has sgd"),
        (["--learning-rate", "0.5"], "it was written with learning_rate 0.05, this run has 0.5"),
        (["--samples", "12"], "it was written with samples 16, this run has 12"),
        (["--precision", "bf16"], "it was written with precision fp32, this run has bf16"),
    ],
)
def test_a_checkpoint_of_another_run(changed: list[str], difference: str, folder: Path, scalewise: Run) -> None:
    path = folder / "c.safetensors"
    assert scalewise(*TINY, "--checkpoint", path).code == 0
    before = path.read_bytes()
    scalewise(*TINY, "--checkpoint", path, "--resume", *changed).refused(
        2, f"checkpoint {path} belongs to another run: {difference}"
    )
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_workload(folder: Path, scalewise: Run) -> None:
    path = folder / "c.safetensors"
    assert scalewise(*TINY, "--checkpoint", path).code == 0
    scalewise("train", "tests.tiny:float64", *TINY[2:], "--checkpoint", path, "--resume").refused(
        2, "it was written with workload tests.tiny:float32, this run has tests.tiny:float64"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file: "),
        (b"not json", "the file: Invalid JSON"),
        (b'{"workload": "linear"}', "device: Field required"),
        (b"\xff\xfe\x00", "the file: Invalid JSON"),
    ],
)
def test_a_file_that_is_no_profile(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        Profile.read(path)
    assert str(error.value).startswith(f"{path} is not a profile: {expected}")
    assert "\n" not in str(error.value)


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the profile .*: No such file or directory"):
        Profile.read(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"cannot read the profile .*: Is a directory"):
        Profile.read(tmp_path)
