"""How long planning takes: 1,024 GPUs on 128 hosts, against parsing the same file with PyYAML alone (C loader).

Prints the minimum of some rounds and their ratio. Planning includes loading and validating the file and the facts of releases.json.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import yaml

from pdctl.plan.facts import Facts
from pdctl.plan.planner import plan_cluster
from pdctl.topology.load import load_topology

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 10


def topology(hosts: int, tp: int) -> str:
    replicas = hosts * 8 // tp // 2
    lines = [
        "model: m",
        f"layout: {replicas}P{replicas}D",
        f"tp: {tp}",
        "connector: nixl",
        "engine: {version: 0.34.0}",
        "hosts:",
    ]
    lines += [f"  - {{name: h{at}, address: 10.0.{at // 200}.{at % 200 + 1}, gpus: 8}}" for at in range(hosts)]
    return "\n".join([*lines, "ports: {base: 12000, size: 20000}", ""])


def plan(text: str) -> int:
    loaded = load_topology(text, file="t.yaml", default_name="t", environ={}, overrides=())
    return len(plan_cluster(loaded.topology, Facts(), loaded.source).instances)


def best_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    print("| hosts x GPUs | tp | instances | plan | PyYAML alone | ratio |\n|---|---|---|---|---|---|")
    for hosts, tp in ((16, 8), (128, 8), (128, 1)):
        text = topology(hosts, tp)
        count = plan(text)
        whole, parse = (
            best_s(lambda text=text: plan(text)),
            best_s(lambda text=text: yaml.load(text, Loader=yaml.CSafeLoader)),
        )
        print(
            f"| {hosts} x 8 | {tp} | {count} | {whole * 1000:.0f} ms | {parse * 1000:.1f} ms | {whole / parse:.0f} x |"
        )


if __name__ == "__main__":
    main()
