"""Planned clusters, started by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from dataclasses import replace

from pdctl.plan.model import InstancePlan, Plan
from tests.conftest import eventually, free_block
from tests.planning import facts, plan_of

Running = list[subprocess.Popen[bytes]]


def planned(connector: str, prefill: str = "", decode: str = "", layout: str = "1P1D") -> Plan:
    """Plan simulated engines and a proxy; `prefill` and `decode` are arguments of that role, as YAML writes them."""
    base = free_block()
    text = (
        f"model: sim/tiny\nlayout: {layout}\nconnector: {connector}\nengine: {{kind: sim, args: {{sim-startup: 0}}}}\n"
        f"prefill: {{args: {{{prefill}}}}}\ndecode: {{args: {{{decode}}}}}\nproxy: {{port: {base + 99}}}\nports: {{base: {base}, size: 99}}\n"
    )
    return plan_of(text, replace(facts(), pdctl_python=sys.executable))


def without_connector(one: InstancePlan) -> InstancePlan:
    at = one.argv.index("--kv-transfer-config")
    return replace(one, argv=one.argv[:at] + one.argv[at + 2 :], kv_transfer_config=None)


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def start(processes: Running, *instances: InstancePlan) -> None:
    processes += [
        subprocess.Popen(one.argv, env={**os.environ, **one.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for one in instances
    ]
    for one in instances:
        eventually(lambda one=one: healthy(one.url), 20, f"{one.name} is healthy")
