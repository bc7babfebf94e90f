"""Ports: pairwise different, each with its owner and the reason for its width (case 4), and unmoved by scaling."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.plan.document import plan_document
from pdctl.plan.model import Plan
from tests.planning import plan_of, problems_of

SIM = "model: m\nlayout: 1P1D\nconnector: nixl\nengine: {kind: sim}\n"
P2P = "model: m\nlayout: 1P1D\ntp: 2\nconnector: p2p_nccl\nengine: {version: 0.22.1}\nhosts: [{name: local, gpus: 4}]\n"


def owners(plan: Plan) -> dict[int, list[str]]:
    """Return port -> who opens it."""
    found: dict[int, list[str]] = {}
    for one in plan.instances:
        for use, span in one.ports.items():
            for port in range(span.first, span.last + 1):
                found.setdefault(port, []).append(f"{one.name}.{use}")
    return found


def test_every_port_has_one_owner_and_every_range_its_reason() -> None:
    plan = plan_of(P2P)
    assert owners(plan) == {
        8000: ["proxy.http"],
        20000: ["producer-0.http"],
        20001: ["producer-0.kv"],
        20002: ["producer-0.kv"],
        20003: ["consumer-0.http"],
        20004: ["consumer-0.kv"],
        20005: ["consumer-0.kv"],
        21999: ["proxy.registration"],
    }
    for one in plan_document(plan)["instances"]:
        assert set(one["port_reasons"]) == set(one["ports"]), "each port says what it is for"
    producer = plan_document(plan)["instances"][0]
    assert producer["ports"]["kv"] == [20001, 20002]
    assert "one for each rank" in producer["port_reasons"]["kv"]


def test_the_config_the_flag_and_the_plan_name_the_same_ports() -> None:
    plan = plan_of(P2P)
    for one in plan.instances:
        if one.role == "proxy":
            continue
        assert one.argv[one.argv.index("--port") + 1] == str(one.ports["http"].first)
        assert one.kv_transfer_config is not None
        assert one.kv_transfer_config["kv_port"] == one.ports["kv"].first
        assert one.ports["kv"].count == len(one.ranks)


SCALED = st.tuples(*[st.integers(1, 5)] * 4, st.integers(0, 2), st.sampled_from(["nixl", "p2p_nccl"]))


@given(SCALED)
@settings(max_examples=60, deadline=None)
def test_scaling_moves_nobodys_ports(sizes: tuple[int, int, int, int, int, str]) -> None:
    p, d, more_p, more_d, aggregated, connector = sizes
    text = SIM.replace("nixl", connector) + f"aggregated: {{replicas: {aggregated}}}\n"
    small = plan_of(text.replace("1P1D", f"{p}P{d}D"))
    large = plan_of(text.replace("1P1D", f"{p + more_p}P{d + more_d}D"))
    for one in small.instances:
        assert one.ports == large.instance(one.name).ports
        if one.role != "proxy":
            assert one == large.instance(one.name), "nobody is restarted for a new replica"
    assert all(len(who) == 1 for who in owners(large).values())


def test_one_more_decode_replica_starts_alone() -> None:
    small, large = plan_of(SIM), plan_of(SIM.replace("1P1D", "1P2D"))
    new = {one.name for one in large.instances} - {one.name for one in small.instances}
    assert new == {"consumer-1"}
    assert owners(small).items() <= owners(large).items()


@pytest.mark.parametrize(
    ("more", "path", "says", "fix"),
    [
        (
            "ports: {base: 20000, size: 3}\n",
            "ports.size",
            "3 ports from 20000 on are too few: this layout takes 4",
            "4",
        ),
        ("ports: {base: 20000}\nproxy: {port: 20001}\n", "proxy.port", "producer-0", "outside"),
    ],
)
def test_ports_that_do_not_suffice_or_are_taken(more: str, path: str, says: str, fix: str) -> None:
    (problem,) = problems_of(SIM + more)
    assert (problem.path, problem.line) == (path, 5 if path.startswith("ports") else 6)
    assert says in problem.what
    assert fix in problem.fix


def test_the_whole_width_of_the_last_instance_is_counted() -> None:
    (problem,) = problems_of(P2P + "ports: {base: 20000, size: 6}\n")
    assert "takes 7" in problem.what, "two blocks of one API and two KV ports, and the registration"
    assert plan_of(P2P + "ports: {base: 20000, size: 7}\n").proxy is not None


def test_a_port_of_the_range_that_nobody_takes_is_free_for_the_proxy() -> None:
    assert plan_of(SIM + "proxy: {port: 20100}\n").url == "http://127.0.0.1:20100"


def test_the_registration_port_is_not_the_proxys() -> None:
    (problem,) = problems_of(P2P + "proxy: {port: 21999}\n")
    assert problem.path == "proxy.port"
    assert "registration" in problem.what


def test_without_a_proxy_nothing_is_registered() -> None:
    plan = plan_of(P2P + "proxy: {kind: none}\n")
    assert plan.url is None
    assert [one.name for one in plan.instances] == ["producer-0", "consumer-0"]
    config = plan.instances[0].kv_transfer_config
    assert config is not None
    assert "proxy_ip" not in config["kv_connector_extra_config"]
