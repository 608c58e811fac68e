"""Which weights of a model are in which stage: those in none are kept as they are, those in two are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from scalewise.errors import UserError
from scalewise.workloads.cuttable import Cuttable


def in_no_stage(model: nn.Module, cuttable: Cuttable) -> dict[str, Tensor]:
    """What the model holds and does not use stays as it is, and goes into checkpoints."""
    state = model.state_dict(keep_vars=True)
    staged = {name for part in cuttable.parts for name in part.names().values()}
    tied = {id(state[name]) for name in staged & state.keys()}
    return {name: tensor.detach() for name, tensor in state.items() if name not in staged and id(tensor) not in tied}


def refuse_shared(model: nn.Module, cuttable: Cuttable, ranges: Sequence[range]) -> None:
    """A weight that two stages use would be updated twice, each time with half its gradient. An export has copies."""
    whole = dict(model.named_parameters(remove_duplicate=False))
    stage_of: dict[nn.Parameter, tuple[int, str]] = {}
    for stage, sections in enumerate(ranges):
        for part in (cuttable.parts[at] for at in sections):
            for parameter in (whole[name] for name in part.names().values() if name in whole):
                other, begins = stage_of.setdefault(parameter, (stage, part.name))
                if other != stage:
                    raise UserError(
                        f"{_shared(parameter, whole, begins, part.name)}, and a cut lies between them; use fewer "
                        "stages, cut elsewhere with cut=MODULE, or untie them"
                    )


def _shared(parameter: nn.Parameter, whole: Mapping[str, nn.Parameter], begins: str, begins_later: str) -> str:
    """Two modules have it, or the model uses that of one in two places: where those are nobody says but the export."""
    owners = [name.rpartition(".")[0] for name, each in whole.items() if each is parameter]
    if len(owners) > 1:
        return f"'{owners[0]}' and '{owners[-1]}' share weights"
    [name] = [name for name, each in whole.items() if each is parameter]
    return f"the model uses '{name}' in '{begins}' and once more in or behind '{begins_later}'"
