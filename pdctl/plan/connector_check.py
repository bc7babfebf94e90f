"""A connector against the cluster: does the release have it, do its rules hold, are its own keys known, can pdctl front it?"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pdctl.connectors.multi import Multi
from pdctl.connectors.state_layers import has_state_layers
from pdctl.plan.versions import version_problems
from pdctl.vllm.releases import known_releases, release
from pdctl.vllm.version import format_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.connectors.base import Ask, Connector
    from pdctl.errors import Problem
    from pdctl.plan.versions import EngineVersion
    from pdctl.topology.schema import Topology
    from pdctl.topology.source import Path, SourceMap
    from pdctl.vllm.version import Version

_ANY_KEY = ("lmcache", "lmcache_mp", "multi")
"""Their keys are handed on to a package that is not vLLM's, or are other connectors' configs."""


def connector_problems(
    topology: Topology, connector: Connector, version: EngineVersion, ask: Ask, source: SourceMap
) -> tuple[list[Problem], list[str]]:
    """Return (problems, warnings)."""
    problems = version_problems(connector, version, source)
    warnings: list[str] = []
    if not problems:
        problems += [
            source.problem(source.written(one.path, one.path[1:] or one.path), one.what, one.fix)
            for one in connector.problems(ask)
        ]
        problems += _state_layers(connector, ask, source)
        warnings += connector.warnings(ask)
    for path, one, extra in _with_extra(connector, ask.extra):
        more, words = _extra_keys(path, one, extra, ask.version, source)
        problems += more
        warnings += words
    problems += _front(topology, connector, ask, source)
    return problems, warnings


def _with_extra(connector: Connector, extra: Mapping[str, Any]) -> list[tuple[Path, Connector, Mapping[str, Any]]]:
    found: list[tuple[Path, Connector, Mapping[str, Any]]] = [(("connector", "extra"), connector, extra)]
    if isinstance(connector, Multi):
        found += [
            (("connector", "connectors", index, "extra"), child.connector, child.extra)
            for index, child in enumerate(connector.children)
        ]
    return found


def _extra_keys(
    path: Path, connector: Connector, extra: Mapping[str, Any], version: Version, source: SourceMap
) -> tuple[list[Problem], list[str]]:
    """Refuse keys that pdctl sets; warn of keys that this release's connector does not read: vLLM ignores them in silence."""
    problems = [
        source.problem((*path, key), f"pdctl sets `{key}` itself, where it belongs", "remove it")
        for key in extra
        if key in connector.own_keys
    ]
    class_name = connector.class_name(version)
    known = release(version).connectors.get(class_name)
    if known is None or not known.extra_keys or connector.name in _ANY_KEY:
        return problems, []
    warnings = []
    for key in extra:
        if key in known.extra_keys or key in connector.own_keys:
            continue
        near = difflib.get_close_matches(key, known.extra_keys, n=1, cutoff=0.7)
        hint = f"did you mean `{near[0]}`?" if near else _read_elsewhere(class_name, key)
        warnings.append(f"{'.'.join(map(str, path))}: {class_name} does not read `{key}`; {hint}")
    return problems, warnings


def _read_elsewhere(class_name: str, key: str) -> str:
    having = [
        one for one in known_releases() if key in getattr(release(one).connectors.get(class_name), "extra_keys", ())
    ]
    if not having:
        return "no known release does"
    return f"releases {format_version(having[0])} to {format_version(having[-1])} do"


def _state_layers(connector: Connector, ask: Ask, source: SourceMap) -> list[Problem]:
    """Models with state layers need the hybrid KV cache, which vLLM turns off for a connector that cannot do it.

    vLLM 0.22.1, config/vllm.py:1440-1481; up to 0.17 every connector turned it off.
    """
    if not has_state_layers(ask.model_config):
        return []
    movers = [one for _, one, _ in _with_extra(connector, {}) if one.name != "multi"]
    lacking = []
    for one in movers:
        known = release(ask.version).connectors.get(one.class_name(ask.version))
        if known is not None and not known.supports_hma:
            lacking.append(one.class_name(ask.version))
    if not lacking:
        return []
    what = f"{' and '.join(lacking)} cannot carry the state of Mamba or linear-attention layers with this vLLM"
    return [source.problem(("connector",), what, "use `connector: nixl` with vLLM 0.18 or newer")]


def _front(topology: Topology, connector: Connector, ask: Ask, source: SourceMap) -> list[Problem]:
    """Name what pdctl itself cannot do with a connector: front it, or simulate it."""
    problems = []
    name = connector.class_names[0]
    if topology.engine.kind == "sim" and not connector.simulated:
        what = f"the simulated engine does not stand in for {name}"
        problems.append(source.problem(("connector",), what, "use nixl or p2p_nccl, or engine.kind: vllm"))
    elif connector.handover is None and topology.proxy.kind != "none" and ask.prefill.replicas and ask.decode.replicas:
        what = f"pdctl's proxy does not speak {name}'s protocol ({connector.protocol})"
        path: Path = ("proxy", "kind") if topology.proxy.kind != "auto" else ("connector",)
        problems.append(
            source.problem(path, what, "set proxy.kind: none and run that connector's own proxy, or use nixl")
        )
    return problems
