"""Links and profiles of the machine, measured once per round; rehearsed hosts, whose links are set, once per folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from predicting.machine import LOOPBACK, Machine, hosts_of
from predicting.quiet import say, undisturbed
from scalewise.clusters.cluster import Cluster
from scalewise.clusters.read import read_cluster
from scalewise.clusters.write import cluster_text
from scalewise.results.profile import Profile, ProfileDocument
from scalewise.verbs.in_step import with_others
from scalewise.verbs.links import measure_links
from scalewise.verbs.one_device import sizes_needed
from scalewise.verbs.profile import profile


@dataclass(frozen=True)
class Look:
    out: Path
    round: Path
    """Within it: what a machine's pace counts for is measured anew in each."""
    machine: Machine
    quick: bool
    only_kept: bool
    """Nothing is measured; what the folder has not is left out."""

    def clusters(self, links: Sequence[str]) -> dict[tuple[str, int], Cluster]:
        """By link and number of devices, whose siblings and hosts differ."""
        found = {}
        for link in links:
            for devices in self.machine.devices:
                folder = self.round if link == LOOPBACK else self.out
                path = folder / f"cluster-{link}-{devices}.toml"
                if not path.exists() and not self.only_kept:
                    say(f"links: {link}, {devices} devices")
                    path.write_text(cluster_text(self._measured(link, devices)))
                if path.exists():
                    found[link, devices] = read_cluster(path)
        return found

    def _measured(self, link: str, devices: int) -> Cluster:
        kind, share = self.machine.device_kind, self.machine.slice_percent
        hosts, speed = hosts_of(link)
        return undisturbed(
            lambda: measure_links(
                devices, device_kind=kind, hosts=hosts, link=speed, slice_percent=share, quick=self.quick
            )
        ).cluster

    def profiles(self, workloads: Mapping[str, Sequence[int]]) -> dict[str, ProfileDocument]:
        found = {}
        for name, batches in workloads.items():
            path = self.round / f"profile-{name.replace(':', '-')}.json"
            if not path.exists() and not self.only_kept:
                say(f"profile: {name}")
                sizes = sizes_needed(batches, self.machine.devices)
                self._profiled(name, sizes).write(path)
            if path.exists():
                found[name] = Profile.read(path).document
        return found

    def _profiled(self, name: str, sizes: Sequence[int]) -> Profile:
        """Eager: steps of several devices over gloo cannot be captured."""
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
