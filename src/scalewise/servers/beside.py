"""What a checkpoint holds beside weights and optimizer: buffers and random states, which only workers have."""

from __future__ import annotations

from dataclasses import dataclass

from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.step.streams import set_states, states

_BUFFER, _RANDOM = "buffer/", "random/"


@dataclass(frozen=True)
class Beside:
    """Left in the store by a worker, read by server 0 as it saves, and by workers as they join.

    `by_step`: synchronous workers are all at the same step, and the server waits for word of just that one.
    """

    store: Store
    by_step: bool

    def tell(self, model: nn.Module, step: int) -> None:
        tensors = {_BUFFER + name: tensor for name, tensor in _buffers(model).items()}
        tensors |= {_RANDOM + kind: state for kind, state in states().items()}
        # Copies: safetensors takes no two tensors of one memory.
        content = save({name: tensor.cpu().clone() for name, tensor in tensors.items()})
        self.store.set(self._key(step), content)  # type: ignore[arg-type]

    def hear(self, model: nn.Module, step: int) -> None:
        """Into the model and this process's generators."""
        tensors = load(bytes(self.store.get(self._key(step))))
        if self.by_step:
            self.store.delete_key(self._key(step))
        for name, tensor in _buffers(model).items():
            tensor.copy_(tensors[_BUFFER + name])
        random = {name: tensor for name, tensor in tensors.items() if name.startswith(_RANDOM)}
        set_states({name.removeprefix(_RANDOM): state for name, state in random.items()})

    def _key(self, step: int) -> str:
        return f"beside/{step}" if self.by_step else "beside"


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Those that a state dict has."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
