"""What hosts say about themselves, judged."""

from __future__ import annotations

from typing import Any

import pytest

from pdctl.plan.model import Plan
from pdctl.plan.preflight import HostAnswer, addresses_on, driver_too_old, judge_hosts, judge_peers
from tests.planning import plan_of

FILE = """
model: /models/llama
layout: 1P1D
connector: nixl
engine: {version: 0.22.1}
hosts:
- {name: a, address: 10.0.0.1, gpus: [0]}
- {name: b, address: 10.0.0.2, gpus: [0], ssh: {host: b}}
"""
GOOD: dict[str, Any] = {
    "now": 1000.0, "hostname": "x", "hostname_addresses": ["10.0.0.9"], "python": "3.11.2", "addresses": {}, "interfaces": {},
    "known_interfaces": ["eth0", "lo"], "ephemeral": [32768, 60999], "proxies": {}, "nofile": 1 << 20, "memlock": None,
    "shm_bytes": 1 << 34, "disk": {"path": "/w", "free": 1 << 40, "writable": True}, "rdma": [], "gpu_processes": [],
    "gpus": [{"index": "0", "uuid": "GPU-0", "name": "H200", "total_mib": 143000, "used_mib": 500, "driver": "580"}],
    "model": {"exists": True, "config": "abc"},
}  # fmt: skip


@pytest.fixture
def plan() -> Plan:
    return plan_of(FILE)


def judged(plan: Plan, *, interface: str | None = None, serving: tuple[str, ...] = (), **changes: Any) -> list[Any]:
    """Judge host b with changed answers beside a good host a."""
    answers = {host: HostAnswer(GOOD if host == "a" else {**GOOD, **changes}, 999.9, 1000.1) for host in ("a", "b")}
    return judge_hosts(plan, {"b": interface}, answers, serving=serving)


def test_good_hosts_are_silent(plan: Plan) -> None:
    assert judged(plan) == []


GPU = GOOD["gpus"][0]
CASES: dict[str, tuple[dict[str, Any], str, bool, str]] = {
    "old python": ({"python": "3.6.8"}, "python", True, "3.6.8"),
    "foreign address": ({"addresses": {"10.0.0.2": "Cannot assign requested address"}}, "address", True, "10.0.0.9"),
    "loopback name": ({"hostname_addresses": ["127.0.1.1"]}, "hostname", False, "127.0.1.1"),
    "low port range": ({"ephemeral": [9000, 60999]}, "ports", False, "9000-60999"),
    "http proxy": ({"proxies": {"http_proxy": "http://p:3128"}}, "proxy", False, "10.0.0.1, 10.0.0.2"),
    "clock": ({"now": 1030.0}, "clock", False, "30.0 s ahead"),
    "few files": ({"nofile": 256}, "limits", False, "256"),
    "locked memory": ({"memlock": 65536, "rdma": [{"device": "mlx5_0", "port": "1", "state": "4: ACTIVE", "rate": ""}]}, "limits", False, "64 KiB"),
    "dead link": ({"rdma": [{"device": "mlx5_0", "port": "1", "state": "1: DOWN", "rate": ""}]}, "rdma", False, "DOWN"),
    "read only": ({"disk": {"path": "/w", "free": 1 << 40, "writable": False}}, "workdir", True, "/w"),
    "full": ({"disk": {"path": "/w", "free": 4096, "writable": True}}, "disk", True, "4 KiB"),
    "small shm": ({"shm_bytes": 64 << 20}, "shm", False, "64 MiB"),
    "no driver": ({"gpus": None}, "gpus", False, "nvidia-smi"),
    "fewer gpus": ({"gpus": []}, "gpus", True, "GPU 0 of"),
    "full gpu": ({"gpus": [{**GPU, "used_mib": 100_000}], "gpu_processes": [{"uuid": "GPU-0", "pid": 7, "used_mib": 99_000, "command": "python train.py"}]}, "gpus", True, "pid 7 (python train.py, 99000 MiB)"),
    "shared gpu": ({"gpu_processes": [{"uuid": "GPU-0", "pid": 7, "used_mib": 100, "command": None}]}, "gpus", False, "pid 7"),
    "no model": ({"model": {"exists": False, "config": None}}, "model", True, "is not there"),
    "no config": ({"model": {"exists": True, "config": None}}, "model", True, "no config.json"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "check", "blocker", "says"), CASES.values(), ids=CASES)
def test_each_fault_is_one_finding(plan: Plan, changes: dict[str, Any], check: str, blocker: bool, says: str) -> None:
    (finding,) = judged(plan, **changes)
    assert (finding.host, finding.check, finding.blocker) == ("b", check, blocker)
    assert says in finding.what
    assert finding.fix


def test_the_same_string_is_another_model(plan: Plan) -> None:
    (finding,) = judged(plan, model={"exists": True, "config": "other"})
    assert (finding.check, finding.blocker) == ("model", True)
    assert "differs" in finding.what


@pytest.mark.parametrize(("state", "says"), [(None, "there is no ib0"), ("down", "ib0 is down")])
def test_interfaces(plan: Plan, state: str | None, says: str) -> None:
    (finding,) = judged(plan, interface="ib0", interfaces={"ib0": state})
    assert (finding.check, finding.what) == ("interface", says)
    assert judged(plan, interface="ib0", interfaces={"ib0": "up"}) == []


def test_a_proxy_that_excepts_the_peers_is_fine(plan: Plan) -> None:
    assert judged(plan, proxies={"http_proxy": "http://p:3128", "no_proxy": "localhost,10.0.0.1,10.0.0.2"}) == []
    assert judged(plan, proxies={"HTTP_PROXY": "http://p:3128", "NO_PROXY": "*"}) == []


def test_our_own_engines_do_not_stand_in_our_way(plan: Plan) -> None:
    full = [{**GPU, "used_mib": 140_000}]
    assert judged(plan, gpus=full, serving=("b",)) == []
    assert judged(plan, gpus=full) != []


def test_who_cannot_reach_whom(plan: Plan) -> None:
    found = judge_peers(plan, {"a": {"10.0.0.2 20002": "no answer"}, "b": {"10.0.0.1 20000": None}})
    assert [(one.host, one.check, one.blocker) for one in found] == [("a", "peers", True)]
    assert "10.0.0.2:20002 on b: no answer" in found[0].what
    assert judge_peers(plan, {"a": {"10.0.0.2 20002": "something else listens there"}}) == []


def test_addresses_are_those_that_instances_bind(plan: Plan) -> None:
    assert addresses_on(plan, "b") == ["10.0.0.2"]


@pytest.mark.parametrize(
    ("driver", "cuda", "old"),
    [
        ("535.104.05", "12.8.90", False),
        ("525.60", "12.9.1", False),
        ("470.82", "12.1.0", True),
        ("575.51", "13.0.48", True),
        ("580.65", "13.0.48", False),
        ("575.51", "14.0", False),
        ("[N/A]", "13.0", False),
    ],
)
def test_drivers(driver: str, cuda: str, old: bool) -> None:
    said = driver_too_old([driver], cuda)
    assert (said is not None) is old
    if said:
        assert driver in said
        assert cuda[:4] in said
