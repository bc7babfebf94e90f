"""What one process tells another is the owning host's data address, and nothing else (case 5)."""

from __future__ import annotations

import re

import pytest

from pdctl.plan.model import Plan
from tests.planning import plan_of

LOOPBACK_OR_WILDCARD = re.compile(r"localhost|\b127\.\d+\.\d+\.\d+|::1\b|\b0\.0\.0\.0\b|\[::\]")


def two_hosts(connector: str, version: str, a: str = "10.0.0.1", b: str = "10.0.0.2", more: str = "") -> Plan:
    return plan_of(
        f"model: m\nlayout: 1P1D\nconnector: {connector}\nengine: {{version: {version}}}\nprefill: {{hosts: [a]}}\ndecode: {{hosts: [b]}}\n"
        f"hosts:\n  - {{name: a, address: {a!r}, gpus: 1}}\n  - {{name: b, address: {b!r}, gpus: 1}}\n{more or 'proxy: {host: a}'}\n"
    )


def words(plan: Plan, name: str) -> str:
    one = plan.instance(name)
    return " ".join([*one.argv, *(f"{key}={value}" for key, value in one.env.items())])


@pytest.mark.parametrize(("connector", "version"), [("nixl", "0.33.0"), ("nixl", "0.10.2"), ("p2p_nccl", "0.22.1")])
def test_each_engine_tells_its_own_hosts_address(connector: str, version: str) -> None:
    plan = two_hosts(connector, version)
    for name, own, other in (("producer-0", "10.0.0.1", "10.0.0.2"), ("consumer-0", "10.0.0.2", "10.0.0.1")):
        one = plan.instance(name)
        assert one.env["VLLM_HOST_IP"] == own
        assert one.argv[one.argv.index("--host") + 1] == own
        assert one.url == f"http://{own}:{one.ports['http'].first}"
        assert not LOOPBACK_OR_WILDCARD.search(words(plan, name))
        told = words(plan, name).replace('"proxy_ip":"10.0.0.1"', "")
        assert other not in told, "nobody's address is copied to another host"


def test_nixl_side_channels_are_the_hosts_own() -> None:
    plan = two_hosts("nixl", "0.33.0")
    hosts = {one.name: one.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST") for one in plan.instances}
    assert hosts == {"producer-0": "10.0.0.1", "consumer-0": "10.0.0.2", "proxy": None}


def test_p2p_engines_register_at_the_proxys_host() -> None:
    plan = two_hosts("p2p_nccl", "0.22.1", more="proxy: {host: b}")
    assert plan.proxy is not None
    at = plan.proxy.ports["registration"].first
    for name in ("producer-0", "consumer-0"):
        config = plan.instance(name).kv_transfer_config
        assert config is not None
        extra = config["kv_connector_extra_config"]
        assert (extra["proxy_ip"], extra["proxy_port"]) == ("10.0.0.2", str(at))
    argv = plan.proxy.argv
    assert argv[argv.index("--registration") + 1] == f"10.0.0.2:{at}"


@pytest.mark.parametrize(("connector", "version"), [("nixl", "0.33.0"), ("p2p_nccl", "0.22.1")])
def test_the_proxy_dials_the_data_addresses(connector: str, version: str) -> None:
    plan = two_hosts(connector, version)
    assert plan.proxy is not None
    argv = plan.proxy.argv
    for flag, name, address in (("--producer", "producer-0", "10.0.0.1"), ("--consumer", "consumer-0", "10.0.0.2")):
        one = plan.instance(name)
        target = argv[argv.index(flag) + 1]
        assert target.startswith(f"{name}=http://{address}:{one.ports['http'].first}")
        assert (f",kv={address}:" in target) is (connector == "p2p_nccl")
    dialled = [word for word in argv if "=http" in word]
    assert len(dialled) == 2
    assert not any(LOOPBACK_OR_WILDCARD.search(word) for word in dialled)


def test_a_proxy_that_listens_everywhere_is_reached_at_its_hosts_address() -> None:
    plan = two_hosts("nixl", "0.33.0", more="proxy: {host: b, bind: 0.0.0.0, port: 8080}")
    assert plan.url == "http://10.0.0.2:8080"
    assert plan.proxy is not None
    assert plan.proxy.argv[plan.proxy.argv.index("--bind") + 1] == "0.0.0.0"


def test_ipv6_addresses_are_bracketed_where_a_port_follows() -> None:
    plan = two_hosts("p2p_nccl", "0.22.1", "fd00::1", "fd00::2")
    producer = plan.instance("producer-0")
    assert producer.url == f"http://[fd00::1]:{producer.ports['http'].first}"
    assert producer.kv_address == f"[fd00::1]:{producer.ports['kv'].first}"
    assert producer.env["VLLM_HOST_IP"] == "fd00::1"
    assert plan.proxy is not None
    argv = plan.proxy.argv
    assert argv[argv.index("--registration") + 1].startswith("[fd00::1]:")


def test_one_host_may_use_loopback() -> None:
    plan = plan_of("model: m\nlayout: 1P1D\nconnector: nixl\nengine: {kind: sim}\n")
    assert {one.address for one in plan.instances} == {"127.0.0.1"}
