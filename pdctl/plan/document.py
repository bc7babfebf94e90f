"""The plan as people's scripts read it: JSON (contract, section 3) and a shell script."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from pdctl.plan.secrets import is_secret, shown_env

if TYPE_CHECKING:
    from pdctl.plan.model import InstancePlan, Plan, PortRange


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return `pdctl plan --format json`. A use of several adjacent ports is written as [first, last]."""
    return {
        "schema": 1,
        "cluster": plan.cluster,
        "vllm_version": plan.vllm_version,
        "engine": f"simulated vLLM {plan.vllm_version}" if plan.engine_kind == "sim" else f"vLLM {plan.vllm_version}",
        "model": plan.model,
        "served_model_name": plan.served_model_name,
        "connector": plan.connector_title or plan.connector,
        "url": plan.url,
        "gpus": {"needed": plan.gpus.needed, "formula": plan.gpus.formula, "available": plan.gpus.available},
        "instances": [_instance(one) for one in plan.instances],
        "fit": plan.fit,
        "warnings": list(plan.warnings),
    }


def _instance(one: InstancePlan) -> dict[str, Any]:
    return {
        "name": one.name,
        "role": one.role,
        "host": one.host,
        "address": one.address,
        "url": one.url,
        "gpus": list(one.gpus),
        "ranks": [vars(rank) for rank in one.ranks],
        "ports": {use: _ports(ports) for use, ports in one.ports.items()},
        "port_reasons": {use: ports.why for use, ports in one.ports.items() if ports.why},
        "argv": list(one.argv),
        "env": shown_env(one.env),
        "secret_env": list(one.secret_env),
        "kv_transfer_config": one.kv_transfer_config,
        "after": list(one.after),
    }


def _ports(ports: PortRange) -> int | list[int]:
    return ports.first if ports.count == 1 else [ports.first, ports.last]


def shell_script(plan: Plan) -> str:
    """Return a script that starts the same processes in the background of one shell; secrets stay in the environment."""
    lines = [
        "#!/bin/sh",
        f"# {plan.cluster}: {plan.gpus.formula} GPUs, vLLM {plan.vllm_version}. What `pdctl up` starts, without its supervision.",
        "set -eu",
        'trap "kill 0" INT TERM EXIT',
    ]
    for one in plan.instances:
        names = f", {', '.join(one.secret_env)} from your environment" if one.secret_env else ""
        lines += ["", f"# {one.name} on {one.host} ({one.address}){names}"]
        env = " ".join(_assignment(name, value) for name, value in one.env.items())
        lines.append(f"{'env ' + env + ' ' if env else ''}{shlex.join(one.argv)} &")
    return "\n".join([*lines, "", "wait", ""])


def _assignment(name: str, value: str) -> str:
    """Return NAME=value for a shell; a secret is taken from the environment of whoever runs the script."""
    return f'{name}="${{{name}:?}}"' if is_secret(name) else f"{name}={shlex.quote(value)}"
