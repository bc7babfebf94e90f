"""What was found out about hosts and model before planning; plain values, gathered elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML shows it."""

    index: int
    uuid: str
    name: str = ""
    memory_mib: int = 0


@dataclass(frozen=True)
class HostFacts:
    """What one host said; None means not asked or no answer."""

    vllm_version: str | None = None
    python: str | None = None
    """Absolute path of the interpreter that has vLLM."""
    gpus: tuple[Gpu, ...] | None = None
    nvlink: bool | None = None
    """Whether any NVLink is up; decides UCX's fast path."""


@dataclass(frozen=True)
class Facts:
    """Everything that planning may know beside the file."""

    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    model_config: Mapping[str, Any] | None = None
    """The model's config.json, if it could be read."""
    weight_bytes: float | None = None
    """Size of the model's safetensors files, if they lie here."""
    pdctl_python: str = "python3"
    """Interpreter that has pdctl, for the proxy and the simulated engine."""

    directory: str = ""
    """Where relative paths of the file start on this machine: the operator's working directory."""
    home: str = ""
    """What `~` means on this machine."""
    assume_gpus: bool = False
    """Whether a host whose GPUs are unknown may be taken to have as many as it needs, with a warning (plan, not up)."""

    def host(self, name: str) -> HostFacts:
        """Return the facts of a host, empty ones if it was not asked."""
        return self.hosts.get(name, HostFacts())
