"""An engine's environment against its release: variables that it does not read, and values that end it. Pure."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.vllm.releases import release, spans
from pdctl.vllm.version import format_version

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from pdctl.vllm.version import Version

_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_MOVABLE = "expandable_segments:True"
_EXEMPT = ("enable-sleep-mode", "enable-cumem-allocator")


@dataclass(frozen=True)
class EnvironmentFault:
    """One variable that does not do what whoever set it hopes for."""

    name: str
    what: str
    fix: str
    fatal: bool
    """Whether the engine ends because of it."""


def environment_faults(
    env: Mapping[str, str], version: Version, *, connector: str | None, args: Container[str] = ()
) -> list[EnvironmentFault]:
    """Return what is wrong with variables that a user set; `connector` is vLLM's class name, `args` the flags that are given.

    vLLM warns of a VLLM_* variable that it does not know from 0.17.0 on (envs.py: "Unknown vLLM environment variable detected"); before, it
    says nothing. Movable memory with a connector ends it from 0.21.0 on (0.32.0, config/vllm.py:1217-1235).
    """
    facts = release(version)
    faults = [
        EnvironmentFault(name, *_unknown(name, version), fatal=False)
        for name in env
        if name.upper().startswith("VLLM_") and name not in facts.environment
    ]
    if connector and _MOVABLE in env.get(_ALLOCATOR, "") and not any(flag in args for flag in _EXEMPT):
        refused = "expandable-segments" in facts.messages
        what = f"{_MOVABLE} lets PyTorch move the memory that {connector} has registered" + (
            "; vLLM refuses to start" if refused else ", and transfers fail later"
        )
        faults.append(EnvironmentFault(_ALLOCATOR, what, f"remove {_MOVABLE}", fatal=refused))
    return faults


def _unknown(name: str, version: Version) -> tuple[str, str]:
    what = f"vLLM {format_version(version)} does not read it"
    there = spans("env", name)
    if there:
        return f"{what}: vLLM {' and '.join(map(str, there))} did", "remove it"
    known = release(version).environment
    if name.upper() in known:
        return what, f"did you mean {name.upper()}?"
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
    return f"{what}, nor does any other", f"did you mean {near[0]}?" if near else "remove it"
