"""The machine that a bench ran on, in the words that its figures need."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

GIB = 1024**3
PACKAGES = ("numpy", "numba", "zstandard", "safetensors", "torch")


class Machine(BaseModel):
    """What the figures of a run depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    core_count: int
    memory_gib: float
    system: str
    python: str
    packages: dict[str, str]

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        return (
            f"{self.cpu}, {self.core_count} cores, {self.memory_gib:.0f} GiB, {self.system}; "
            f"Python {self.python}, {packages}"
        )


def this_machine() -> Machine:
    """Describe the machine that this process runs on."""
    return Machine(
        cpu=_cpu_name(),
        core_count=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        system=f"{platform.system()} {_kernel(platform.release())} {platform.machine()}",
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in PACKAGES},
    )


def _kernel(release: str) -> str:
    """Major and minor number of a kernel: the rest of its release names one build of it."""
    return ".".join(re.findall(r"\d+", release)[:2])


def _cpu_name() -> str:
    """The model name, and its family and model number, since virtual ones hide the name."""
    facts: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts.get('model', '?')})"
