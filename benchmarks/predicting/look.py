"""Links and profiles of the machine, measured once per round. Emulated hosts have fixed links: once per folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from predicting.machine import LOOPBACK, Machine, hosts_of
from predicting.quiet import say, undisturbed
from scalewise.advice.one_device import sizes_needed
from scalewise.formats.profile import Profile, ProfileDocument
from scalewise.hardware.cluster import Cluster, cluster_text, read_cluster
from scalewise.probe.measure_links import measure_links
from scalewise.probe.profile import profile
from scalewise.probe.sibling_profiler import with_others


@dataclass(frozen=True)
class MachineFiles:
    """Clusters and profiles in the output folder; those that are missing are measured."""

    out: Path
    round: Path
    """Folder of the round, inside `out`, for everything that depends on the machine's present speed."""
    machine: Machine
    quick: bool
    only_saved: bool
    """Measure nothing, and leave out what the folder does not have."""

    def clusters(self, links: Sequence[str]) -> dict[tuple[str, int], Cluster]:
        """Clusters by link and number of devices."""
        clusters = {}
        for link in links:
            for devices in self.machine.devices:
                folder = self.round if link == LOOPBACK else self.out
                path = folder / f"cluster-{link}-{devices}.toml"
                if not path.exists() and not self.only_saved:
                    say(f"links: {link}, {devices} devices")
                    path.write_text(cluster_text(self._measure_cluster(link, devices)))
                if path.exists():
                    clusters[link, devices] = read_cluster(path)
        return clusters

    def _measure_cluster(self, link: str, devices: int) -> Cluster:
        kind, share = self.machine.device_kind, self.machine.slice_percent
        hosts, bandwidth = hosts_of(link)
        return undisturbed(
            lambda: measure_links(
                devices, device_kind=kind, hosts=hosts, link=bandwidth, slice_percent=share, quick=self.quick
            )
        ).cluster

    def profiles(self, workloads: Mapping[str, Sequence[int]]) -> dict[str, ProfileDocument]:
        profiles = {}
        for name, batches in workloads.items():
            path = self.round / f"profile-{name.replace(':', '-')}.json"
            if not path.exists() and not self.only_saved:
                say(f"profile: {name}")
                sizes = sizes_needed(batches, self.machine.devices)
                self._measure_profile(name, sizes).write(path)
            if path.exists():
                profiles[name] = Profile.read(path).document
        return profiles

    def _measure_profile(self, name: str, sizes: Sequence[int]) -> Profile:
        """Profile in eager mode, because steps of several devices over gloo cannot be captured in a CUDA graph."""
        kind, share, samples = self.machine.device_kind, self.machine.slice_percent, self.machine.samples
        alone = undisturbed(
            lambda: profile(
                name, batch=sizes, device_kind=kind, slice_percent=share, samples=samples, execution="eager"
            )
        )
        if kind != "slice":
            return alone
        counts = self.machine.devices
        return with_others(alone, name, counts, device_kind=kind, slice_percent=share, samples=samples)
