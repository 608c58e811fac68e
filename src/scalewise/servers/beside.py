"""What a checkpoint holds beside weights and optimizer: buffers and random states, which only workers have."""

from __future__ import annotations

from dataclasses import dataclass

from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.step.streams import States, states

_BUFFER, _RANDOM = "buffer/", "random/"


@dataclass(frozen=True)
class Beside:
    """Left in the store by workers, read by server 0 as it saves, and by workers as they join.

    `workers`: synchronous ones are all at the same step, and the server waits for word of just that one from each of
    them; None: the last word of whichever asynchronous one.
    """

    store: Store
    workers: int | None

    def tell(self, model: nn.Module, step: int, worker: int = 0) -> None:
        tensors = {_RANDOM + kind: state for kind, state in states().items()}
        if self.workers is None or worker == 0:
            tensors |= {_BUFFER + name: tensor for name, tensor in _buffers(model).items()}
        # Copies: safetensors takes no two tensors of one memory.
        content = save({name: tensor.cpu().clone() for name, tensor in tensors.items()})
        self.store.set(self._key(step, worker), content)  # type: ignore[arg-type]

    def hear(self, model: nn.Module, step: int) -> list[States]:
        """Buffers into the model; where the generators of those that told are."""
        told = [self._told(step, worker) for worker in range(self.workers or 1)]
        for name, tensor in _buffers(model).items():
            tensor.copy_(told[0][_BUFFER + name])
        return [
            {name.removeprefix(_RANDOM): state for name, state in tensors.items() if name.startswith(_RANDOM)}
            for tensors in told
        ]

    def _told(self, step: int, worker: int) -> dict[str, Tensor]:
        key = self._key(step, worker)
        tensors = load(bytes(self.store.get(key)))
        if self.workers is not None:
            self.store.delete_key(key)
        return tensors

    def _key(self, step: int, worker: int) -> str:
        return "beside" if self.workers is None else f"beside/{step}/{worker}"


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Those that a state dict has."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
