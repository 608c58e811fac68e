"""Where ranks run: how many, on what, on how many rehearsed hosts, and which of them are slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scalewise.errors import UserError
from scalewise.session.cores import allowed_cores
from scalewise.session.hosts import MOST_HOSTS, parse_link
from scalewise.spec import unknown

DEVICE_KINDS = ("cpu", "cuda", "slice", "auto")
LONGEST_TIMEOUT_SECONDS = 1_000_000
MOST_SERVERS = 32
"""As many as were seen to train, started within half a minute on two busy cores: each is a process with a line, and
threads, for every worker."""


@dataclass(frozen=True)
class Placement:
    """The same on every machine until a session settles 'auto' on what is really there."""

    devices: int = 1
    """Ranks over all hosts."""
    device_kind: str = "auto"
    """cpu: a core each; cuda: a GPU each; slice: a share of one GPU each; auto: cuda if there are enough, else cpu."""
    hosts: int = 1
    """Rehearsed on this machine, as network namespaces; under torchrun, real."""
    link: str | None = None
    """Speed of the rehearsed hosts' links: '1gbit'."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Rank -> the share of its core(s) that it may use."""
    slice_percent: int | None = None
    """Share of the GPU's multiprocessors per slice; 100 / devices if not given."""
    cores_per_device: int = 1
    """Cores, and threads, of one cpu rank. The same at every N, or a speed-up would compare different devices."""
    timeout_seconds: float = 60.0
    """How long ranks wait for each other before the run has failed."""
    servers: int = 0
    """Processes beside the ranks that hold parameters; on rehearsed hosts each has a host of its own."""

    def __post_init__(self) -> None:
        _within("devices", self.devices, 1, None)
        _within("hosts", self.hosts, 1, MOST_HOSTS)
        if self.servers:
            _within("servers", self.servers, 1, MOST_SERVERS)
        _within("cores per device", self.cores_per_device, 1, None)
        if self.device_kind not in DEVICE_KINDS:
            raise unknown("device kind", self.device_kind, DEVICE_KINDS)
        if not 0 < self.timeout_seconds <= LONGEST_TIMEOUT_SECONDS:
            raise UserError(
                f"a timeout of {self.timeout_seconds:g} s is not possible; valid: above 0, up to "
                f"{LONGEST_TIMEOUT_SECONDS:,} s"
            )
        self._check_hosts()
        self._check_slow()
        self._check_slices()

    def _check_hosts(self) -> None:
        if self.link is not None and self.hosts + self.servers > MOST_HOSTS:
            raise UserError(
                f"{self.hosts} hosts and {self.servers} more for servers are too many to rehearse; valid: up to "
                f"{MOST_HOSTS} in all"
            )
        if self.hosts == 1 and not self.servers:
            if self.link is not None:
                raise UserError(f"link '{self.link}' joins rehearsed hosts; ask for 2 to {MOST_HOSTS} with --hosts")
            return
        if self.link is not None:
            parse_link(self.link)
        if self.devices < self.hosts:
            raise UserError(
                f"{self.devices} devices leave some of {self.hosts} hosts without one; valid: {self.hosts} or more"
            )
        if self.device_kind == "cuda" and self.link is not None:
            raise UserError(
                "rehearsed hosts slow sockets down, and NCCL here uses none; use --device-kind cpu or slice"
            )

    def _check_slow(self) -> None:
        for rank, share in self.slow.items():
            if not 0 <= rank < self.devices:
                raise UserError(f"there is no rank {rank} to slow down; valid: 0 to {self.devices - 1}")
            if not 0.01 <= share <= 1:
                raise UserError(f"rank {rank} cannot run at {share:g} of its speed; valid: 0.01 to 1")
        if self.slow and self.device_kind not in ("cpu", "auto"):
            raise UserError(f"only cpu ranks can be slowed down, not '{self.device_kind}'; use --device-kind cpu")

    def _check_slices(self) -> None:
        if self.slice_percent is None:
            return
        if self.device_kind != "slice":
            raise UserError(
                f"a slice percentage means nothing with --device-kind {self.device_kind}; use --device-kind slice"
            )
        _within("slice percent", self.slice_percent, 1, 100)

    def host_of(self, rank: int) -> int:
        """Neighbouring ranks share a host: 4 ranks on 2 hosts live on 0 0 1 1."""
        return rank * self.hosts // self.devices

    @property
    def oversubscribed(self) -> bool:
        """More cpu ranks than cores: they take turns, and their step times say little about real devices."""
        return self.device_kind == "cpu" and self.devices * self.cores_per_device > len(allowed_cores())


def parse_slow(texts: Iterable[str]) -> dict[int, float]:
    """['1=0.5', '2=0.25'] -> {1: 0.5, 2: 0.25}."""
    slow: dict[int, float] = {}
    for text in texts:
        rank, _, share = text.partition("=")
        try:
            slow[int(rank)] = float(share)
        except ValueError:
            raise UserError(f"cannot read slow rank '{text}'; write RANK=SHARE, for example 1=0.5") from None
    return slow


def _within(what: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        valid = f"{least} or more" if most is None else f"{least} to {most}"
        raise UserError(f"{what} cannot be {value}; valid: {valid}")
