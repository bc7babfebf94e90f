"""What must hold in every plan that is made: up to 64 hosts of 8 GPUs, any mix of sizes and connectors."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.connectors.registry import find_connector
from pdctl.errors import PlanError
from pdctl.plan.model import Plan
from tests.planning import plan_of

CONNECTORS = (
    ("nixl", "0.34.0"), ("nixl", "0.10.2"), ("nixl_push", "0.34.0"), ("p2p_nccl", "0.22.1"), ("mooncake", "0.34.0"),
    ("mooncake", "0.15.1"), ("moriio", "0.34.0"), ("lmcache", "0.34.0"), ("example", "0.34.0"), ("multi", "0.34.0"),
)  # fmt: skip
EXTRA = {
    "lmcache": {"lmcache.pd_proxy_host": "10.9.9.9", "lmcache.pd_proxy_port": 7500},
    "example": {"shared_storage_path": "/shared"},
}
SIZES = st.fixed_dictionaries(
    {"tp": st.sampled_from([1, 2, 4, 8]), "dp": st.sampled_from([1, 1, 1, 2, 4]), "pp": st.sampled_from([1, 1, 1, 2])}
)


@st.composite
def topologies(draw: st.DrawFn) -> str:
    """Draw a file's text; most of them can be planned."""
    name, version = draw(st.sampled_from(CONNECTORS))
    connector: dict[str, object] = {"name": name, "extra": EXTRA.get(name, {})}
    if name == "multi":
        connector["connectors"] = ["offloading", draw(st.sampled_from(["nixl", "mooncake"]))]
    hosts = draw(st.integers(1, 64))
    prefill = {**draw(SIZES), "replicas": draw(st.integers(1, 40))}
    alike = draw(st.booleans())
    decode = {**(prefill if alike else draw(SIZES)), "replicas": draw(st.integers(1, 40))}
    speaks = name == "multi" or find_connector(name).handover is not None
    document = {
        "model": "m", "connector": connector, "prefill": prefill, "decode": decode, "aggregated": {"replicas": draw(st.integers(0, 3))},
        "allow_idle_gpus": True, "engine": {"version": version}, "proxy": {"kind": "builtin" if speaks else "none"},
        "ports": {"base": 12000, "size": 20000},
        "hosts": [{"name": f"h{at}", "address": f"10.0.{at // 200}.{at % 200 + 1}", "gpus": 8} for at in range(hosts)],
    }  # fmt: skip
    if connector.get("connectors") and "mooncake" in str(connector):
        document["proxy"] = {"kind": "none"}
    return json.dumps(document)


def check_ports(plan: Plan) -> None:
    taken = Counter(
        (one.host, port)
        for one in plan.instances
        for ports in one.ports.values()
        for port in range(ports.first, ports.last + 1)
    )
    assert [place for place, count in taken.items() if count > 1] == []


def check_gpus_and_ranks(plan: Plan) -> None:
    used = Counter((one.host, gpu) for one in plan.instances for gpu in one.gpus)
    assert [place for place, count in used.items() if count > 1] == []
    for one in plan.instances:
        assert [rank.rank for rank in one.ranks] == list(range(len(one.ranks)))
        assert [rank.gpu for rank in one.ranks] == list(one.gpus)
        assert len({(rank.dp, rank.pp, rank.tp) for rank in one.ranks}) == len(one.ranks)
    assert sum(len(one.gpus) for one in plan.instances) == plan.gpus.needed


def check_addresses(plan: Plan) -> None:
    """Whatever one process tells another is the owner's data address, with a port that the owner has."""
    hosts = {host.name: host.address for host in plan.hosts}
    for one in plan.instances:
        if one.role == "proxy":
            continue  # its address is where clients come in
        assert one.address == hosts[one.host]
        assert one.env["VLLM_HOST_IP"] == one.address
        if "VLLM_NIXL_SIDE_CHANNEL_HOST" in one.env:
            assert one.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == one.address
            assert int(one.env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == one.ports["side_channel"].first
        extra = (one.kv_transfer_config or {}).get("kv_connector_extra_config", {})
        if "lmcache.pd_peer_host" in extra:
            assert extra["lmcache.pd_peer_host"] == one.address
            assert set(extra["lmcache.pd_peer_init_port"]) <= set(
                range(one.ports["init"].first, one.ports["init"].last + 1)
            )
        if "http_port" in extra:
            assert int(extra["http_port"]) == one.ports["http"].first
        if "proxy_ip" in extra and plan.proxy is not None:
            assert extra["proxy_ip"] == hosts[plan.proxy.host]
    if plan.proxy is not None:
        words = list(chain.from_iterable(word.split("=", 1)[1:] for word in plan.proxy.argv if "=http" in word))
        named = {word.split(",")[0] for word in words}
        assert named == {one.url for one in plan.instances if one.role != "proxy"}


@settings(max_examples=150)
@given(topologies())
def test_every_plan_that_is_made_holds(text: str) -> None:
    try:
        plan = plan_of(text)
    except PlanError as error:
        assert all(problem.what and problem.path for problem in error.problems)
        return
    check_ports(plan)
    check_gpus_and_ranks(plan)
    check_addresses(plan)
    assert plan == plan_of(text)


def test_most_of_these_topologies_are_planned() -> None:
    """The property above must not hold because nothing is planned."""
    outcomes: Counter[bool] = Counter()

    @settings(max_examples=100, database=None, derandomize=True)
    @given(topologies())
    def look(text: str) -> None:
        try:
            outcomes[len(plan_of(text).instances) > 0] += 1
        except PlanError:
            outcomes[False] += 1

    look()
    assert outcomes[True] >= 25, outcomes
