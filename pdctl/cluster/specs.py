"""From a planned instance to the shim's spec. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from pdctl.vllm.milestones import GAUGES, PHASES
from pdctl.vllm.signatures import STUCK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.plan.model import InstancePlan, Plan

_STOP_TIMEOUT_S = 30


def spec_of(plan: Plan, instance: InstancePlan) -> dict[str, Any]:
    """Return spec.json of one instance. Its `hash` covers all that a restart would be needed for."""
    proxy = instance.role == "proxy"
    spec: dict[str, Any] = {
        "schema": 1,
        "cluster": plan.cluster,
        "instance": instance.name,
        "role": instance.role,
        "host": instance.host,
        "address": instance.address,
        "url": instance.url,
        "argv": list(instance.argv),
        "env_names": sorted(instance.env),
        "secret_names": list(instance.secret_env),
        "gpus": list(instance.gpus),
        "ports": {use: [ports.first, ports.count] for use, ports in instance.ports.items()},
        "health": {
            "url": instance.url + instance.health_path,
            "interval_s": plan.health["interval_s"],
            "timeout_s": 5,
            "startup_timeout_s": plan.health["startup_timeout_s"],
        },
        "metrics": {"url": instance.url + "/pdctl/instances", "json": True}
        if proxy
        else {"url": instance.url + "/metrics", "gauges": dict(GAUGES)},
        "phases": [] if proxy else [list(phase) for phase in PHASES],
        "stuck": [] if proxy else [list(one) for one in STUCK],
        "restart": dict(plan.restart),
        "logs": dict(plan.logs),
        "stop_timeout_s": _STOP_TIMEOUT_S,
    }
    covered = {key: spec[key] for key in ("argv", "secret_names", "gpus", "ports", "health", "restart", "logs")}
    covered["env"] = dict(instance.env)
    spec["hash"] = hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()
    return spec


def environment_of(instance: InstancePlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what goes into the instance's `env` file: the planned values and the secrets named, as far as they are set."""
    secrets = {name: environ[name] for name in instance.secret_env if name in environ}
    return {**instance.env, **secrets}
