"""Lines that give a plain PyTorch, transformers or Lightning script the same execution options. Imports no torch."""

from __future__ import annotations

from scalewise.core.training_options import ExecutionOptions, TrainingOptions

HALF = {"bf16": "bfloat16", "fp16": "float16"}
FOURIER = [
    "from scalewise.runtime.fourier_convolution import use_fourier_convolutions",
    "# inputs: a batch on the device",
    'use_fourier_convolutions(model, "{choice}", lambda: inputs)',
]
TF32 = ["torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cudnn.allow_tf32 = True"]
NO_GRAPH = "# CUDA graph of the whole step: only with scalewise.train"


def code_lines(options: ExecutionOptions, device_kind: str) -> dict[str, list[str]]:
    """Return lines by kind of script: 'Plain PyTorch', 'transformers Trainer', 'Lightning'.

    The names `model`, `inputs`, `targets`, `loss_function` and `optimizer` are those of the user's script.
    """
    device = "cuda" if device_kind in ("cuda", "slice") else "cpu"
    return {
        "Plain PyTorch": _plain(options, device),
        "transformers Trainer": _trainer(options, device),
        "Lightning": _lightning(options, device),
    }


def _plain(options: ExecutionOptions, device: str) -> list[str]:
    lines = _prepared_model(options)
    if options.execution == "graph":
        lines += ["model = torch.cuda.make_graphed_callables(model, (inputs,))"]
    if options.compiles:
        lines += [f"model = torch.compile(model{_mode(options)})"]
    if device == "cuda":
        lines += ["optimizer = torch.optim.Adam(model.parameters(), fused=True)"]
    loop = []
    if options.memory_format == "channels_last":
        loop += ["inputs = inputs.contiguous(memory_format=torch.channels_last)"]
    if options.precision in HALF:
        dtype = HALF[options.precision]
        loop += [f'with torch.autocast("{device}", dtype=torch.{dtype}):']
        loop += ["    loss = loss_function(model(inputs), targets)"]
    if options.precision == "fp16":
        lines += [f'scaler = torch.amp.GradScaler("{device}")']
        loop += ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
    return [*lines, *(["# in the training loop:", *loop] if loop else [])]


def _trainer(options: ExecutionOptions, device: str) -> list[str]:
    arguments = []
    if options.compiles:
        arguments += ["torch_compile=True"]
        if options.compile_mode != TrainingOptions.compile_mode:
            arguments += [f'torch_compile_mode="{options.compile_mode}"']
    if options.precision != TrainingOptions.precision:
        arguments += [f"{options.precision}=True"]
    if device == "cuda":
        arguments += ['optim="adamw_torch_fused"']
    lines = _prepared_model(options, tf32=False)
    if options.execution == "graph":
        lines += [NO_GRAPH]
    if options.memory_format == "channels_last":
        lines += ["# in the data collator: .contiguous(memory_format=torch.channels_last)"]
    return [*lines, *([f"TrainingArguments(..., {', '.join(arguments)})"] if arguments else [])]


def _lightning(options: ExecutionOptions, device: str) -> list[str]:
    lines = _prepared_model(options)
    if options.execution == "graph":
        lines += [NO_GRAPH]
    if options.compiles:
        lines += [f"model = torch.compile(model{_mode(options)})"]
    if options.memory_format == "channels_last":
        lines += ["# in training_step:", "inputs = inputs.contiguous(memory_format=torch.channels_last)"]
    if device == "cuda":
        lines += ["# in configure_optimizers: torch.optim.Adam(self.parameters(), fused=True)"]
    if options.precision in HALF:
        precision = "bf16-mixed" if options.precision == "bf16" else "16-mixed"
        lines += [f'Trainer(..., precision="{precision}")']
    return lines


def _prepared_model(options: ExecutionOptions, *, tf32: bool = True) -> list[str]:
    """Lines between building the model and using it."""
    lines = list(TF32) if tf32 and options.precision == "tf32" else []
    if options.memory_format == "channels_last":
        lines += ["model = model.to(memory_format=torch.channels_last)"]
    if options.convolutions != "direct":
        lines += [line.format(choice=options.convolutions) for line in FOURIER]
    return lines


def _mode(options: ExecutionOptions) -> str:
    return "" if options.compile_mode == TrainingOptions.compile_mode else f', mode="{options.compile_mode}"'
