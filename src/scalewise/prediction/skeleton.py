"""A machine that measurements come from, as a cluster whose links are still to be fitted."""

from __future__ import annotations

from dataclasses import replace

from scalewise.clusters.catalogue import catalogue
from scalewise.clusters.cluster import Cluster, Device, Link
from scalewise.results.environment import Environment

CPU_GBps, CPU_LATENCY_us = 1.0, 100.0
"""Sockets between cores; where a fit starts from, and near enough for the latency."""
MEMORY_GBps = 4.0
"""A core copying in memory."""
GPU_GBps, GPU_LATENCY_us = 10.0, 15.0


def skeleton(environment: Environment, device_kind: str, devices: int) -> Cluster:
    """A box of the catalogue with the same devices, if there is one."""
    if device_kind == "cpu":
        name = f"one core of {environment.hardware.get('cpu', 'this machine')}"
        memory_GB = environment.hardware.get("memory_bytes", 8e9) / 1e9 / devices
        device = Device(name, devices, memory_GB, 0.05, 10.0, 0.0, copy_GBps=CPU_GBps)
        return _box(device, "gloo", Link("devices", "sockets", CPU_GBps, CPU_LATENCY_us), MEMORY_GBps)
    gpus = environment.hardware.get("gpus") or ["GPU"]
    if device_kind == "cuda":
        for box in catalogue().values():
            if box.devices[0].name in gpus[0] and box.devices_per_host >= devices:
                return replace(box, measured=())
    device = Device(gpus[0], devices, 1e6, 10.0, 1000.0, 5.0)
    backend = "nccl" if device_kind == "cuda" else "gloo"
    return _box(device, backend, Link("devices", backend, GPU_GBps, GPU_LATENCY_us), GPU_GBps)


def _box(device: Device, backend: str, link: Link, memory_GBps: float) -> Cluster:
    return Cluster(
        name=f"{device.count} x {device.name}",
        hosts=1,
        devices_per_host=device.count,
        devices=(device,),
        links=(link, Link("host-device", "memory", memory_GBps, 0.0)),
        backend=backend,  # type: ignore[arg-type]
        knowledge="fitted",
    )
