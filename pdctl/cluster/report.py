"""What `status` says about a cluster, as plain data (contract, section 3). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.cluster.known import KnownCluster
    from pdctl.cluster.observe import Observed, SeenInstance
    from pdctl.vllm.root_causes import RootCause

_OTHER_ROLE = {"producer": "consumer", "consumer": "producer"}
_LIVE = ("starting", "ready", "unhealthy", "stopping")


def status_document(
    observed: Observed, known: KnownCluster, causes: Mapping[str, RootCause] | None = None
) -> dict[str, Any]:
    """Return the JSON of `pdctl status`; `causes`: why instances failed. Keys of the contract come first; others are additions."""
    plan = observed.plan
    counts = {role: _counts(observed, role) for role in ("producer", "consumer", "aggregated")}
    return {
        "schema": 1,
        "cluster": observed.cluster,
        "state": observed.state,
        "url": plan.url if plan else None,
        "topology": known.topology,
        "instances": [_instance(seen, observed, counts, (causes or {}).get(seen.name)) for seen in observed.instances],
        "ready": {role: f"{ready}/{total}" for role, (ready, total) in counts.items() if total},
        "engine": {"kind": plan.engine_kind, "vllm_version": plan.vllm_version} if plan else None,
        "model": plan.served_model_name if plan else None,
        "verify": _verification(observed),
        "unreachable": {host: error.what for host, error in observed.unreachable.items()},
        "now": observed.now,
    }


def _counts(observed: Observed, role: str) -> tuple[int, int]:
    states = [seen.state for seen in observed.instances if seen.role == role]
    return states.count("ready"), len(states)


def _instance(
    seen: SeenInstance, observed: Observed, counts: Mapping[str, tuple[int, int]], cause: RootCause | None
) -> dict[str, Any]:
    data, spec = seen.data, seen.spec
    ports = spec.get("ports") or {}
    live = seen.state in _LIVE
    load = data.get("load") or {} if seen.role != "proxy" else {}
    started = data.get("started_at")
    other = counts.get(_OTHER_ROLE.get(seen.role, ""))
    return {
        "name": seen.name,
        "role": seen.role,
        "state": seen.state,
        "phase": data.get("phase") if seen.state == "starting" else None,
        "host": seen.host,
        "gpus": [str(gpu) for gpu in spec.get("gpus") or []],
        "pid": data.get("pid") if live else None,
        "port": ports["http"][0] if "http" in ports else None,
        "url": spec.get("url"),
        "uptime_s": round(max(0.0, observed.now - float(started)), 1) if started and live else None,
        "restarts": int(data.get("restarts") or 0),
        "exit_code": data.get("exit_code") if not live else None,
        "reason": data.get("reason"),
        "cause": cause.cause if cause else None,
        "fix": cause.fix if cause else None,
        "running": _whole(load.get("running")),
        "waiting": _whole(load.get("waiting")),
        "kv_usage": load.get("kv_usage"),
        "ports": {use: list(range_) for use, range_ in ports.items()},
        "peers": f"{other[0]}/{other[1]}" if other else None,
        "processes": seen.alive,
    }


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _verification(observed: Observed) -> dict[str, Any] | None:
    note = observed.record.get("verify")
    if not note:
        return None
    return {
        "ok": bool(note.get("ok")),
        "headline": note.get("headline"),
        "ago_s": round(max(0.0, observed.now - float(note["at"])), 1),
    }
