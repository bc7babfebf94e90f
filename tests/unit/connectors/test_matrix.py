"""Every release in releases.json with every connector that it has: what pdctl writes must be what that release reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdctl.connectors.config_fields import field_faults
from pdctl.connectors.registry import PD_NAMES, SHORT_NAMES, find_connector
from pdctl.plan.model import InstancePlan, Plan
from pdctl.vllm.argument_types import misfit
from pdctl.vllm.flags import normal_flag
from pdctl.vllm.releases import known_releases, names, release
from pdctl.vllm.version import Version, format_version
from tests.planning import plan_of, problems_of

EXTRA: dict[str, dict[str, Any]] = {
    "moriio": {"proxy_ip": "10.0.0.9", "proxy_ping_port": "36367"},
    "lmcache": {"lmcache.pd_proxy_host": "10.0.0.9", "lmcache.pd_proxy_port": 7500},
    "example": {"shared_storage_path": "/shared/kv"},
}
HANGS = [((0, 14, 0), (0, 16, 0))]
"""Releases with P2pNccl and without a switch for the random suffix of request ids."""
HOSTS = "hosts:\n  - {name: a, address: 10.0.0.1, gpus: 2}\n  - {name: b, address: 10.0.0.2, gpus: 2}\n"


def topology(connector: str, version: Version, tp: int = 1) -> str:
    spec: dict[str, Any] = {"name": connector, "extra": EXTRA.get(connector, {})}
    if connector == "multi":
        spec["connectors"] = ["nixl", {"name": "offloading", "extra": {"num_cpu_blocks": 100}}]
    front = "" if find_connector(connector).handover or connector == "multi" else "proxy: {kind: none}\n"
    return (
        f"model: m\nlayout: 2P2D\ntp: {tp}\nengine: {{version: {format_version(version)}}}\nconnector: {json.dumps(spec)}\n{front}"
        + HOSTS.replace("gpus: 2", f"gpus: {2 * tp}")
    )


def faults(one: InstancePlan, version: Version) -> list[str]:
    """Hold one instance's argv and env against the facts of a release, and nothing else."""
    facts, found = release(version), []
    config = json.loads(one.argv[one.argv.index("--kv-transfer-config") + 1])
    found += config_faults(config, version)
    words = one.argv[list(one.argv).index("-m") + 2 :]
    at = 0
    while at < len(words):
        name = normal_flag(words[at])
        values = []
        at += 1
        while at < len(words) and not words[at].startswith("-"):
            values.append(words[at])
            at += 1
        flag = facts.flags.get(name)
        if flag is None:
            found.append(f"no flag {name}")
        elif flag.kind in ("bool", "switch") and values:
            found.append(f"{name} takes no value")
        elif flag.kind not in ("bool", "switch", "any") and misfit(flag, values[0] if len(values) == 1 else values):
            found.append(f"{name}: {values}")
    unknown = [name for name in one.env if name.startswith("VLLM_") and name not in facts.environment]
    return found + [f"no variable {name}" for name in unknown]


def config_faults(config: dict[str, Any], version: Version) -> list[str]:
    facts, class_name = release(version), config["kv_connector"]
    if class_name not in facts.connectors:
        return [f"no connector {class_name}"]
    found = [what for _, what, _ in field_faults(config, class_name, version)]
    if config["kv_role"] not in ("kv_producer", "kv_consumer", "kv_both"):
        found.append(f"role {config['kv_role']}")
    extra = config.get("kv_connector_extra_config", {})
    inside = extra.get("connectors", [])
    for child in inside:
        found += config_faults(child, version)
    known = facts.connectors[class_name].extra_keys
    if known and not inside:
        found += [f"{class_name} does not read {key}" for key in extra if key not in known and "lmcache" not in key]
    return found


def has(connector: str, version: Version) -> bool:
    one = find_connector(connector)
    inside = ("OffloadingConnector", "NixlConnector") if connector == "multi" else ()
    return all(name in release(version).connectors for name in (one.class_name(version), *inside))


def hangs(connector: str, version: Version) -> bool:
    return connector == "p2p_nccl" and any(first <= version <= last for first, last in HANGS)


CASES = [
    pytest.param(version, connector, id=f"{format_version(version)}-{connector}")
    for version in known_releases()
    for connector in SHORT_NAMES
    if has(connector, version) and not hangs(connector, version)
]


@pytest.mark.parametrize(("version", "connector"), CASES)
@pytest.mark.parametrize("tp", [1, 2])
def test_what_is_generated_is_what_the_release_reads(version: Version, connector: str, tp: int) -> None:
    if connector == "example" and tp > 1:
        assert any("overwrite" in one.what for one in problems_of(topology(connector, version, tp)))
        return
    plan = plan_of(topology(connector, version, tp))
    roles = {one.role: one for one in plan.instances}
    assert {"producer", "consumer"} <= set(roles)
    for one in plan.instances:
        if one.role != "proxy":
            assert faults(one, version) == [], one.name
    if connector in PD_NAMES:
        assert [roles[role].kv_transfer_config["kv_role"] for role in ("producer", "consumer")] == [
            "kv_producer",
            "kv_consumer",
        ]  # type: ignore[index]
    else:
        assert any("does not disaggregate" in warning for warning in plan.warnings)


@pytest.mark.parametrize("version", known_releases(), ids=format_version)
def test_a_connector_that_a_release_lacks_is_refused_with_the_way_out(version: Version) -> None:
    for connector in SHORT_NAMES:
        if connector != "multi" and not has(connector, version):
            (problem,) = [one for one in problems_of(topology(connector, version)) if one.path.startswith("connector")]
            assert "came with vLLM" in problem.what or "went away in vLLM" in problem.what
            assert problem.fix


def test_every_connector_that_any_release_registers_has_a_name_here() -> None:
    named = {class_name: name for name in SHORT_NAMES for class_name in find_connector(name).class_names}
    assert set(named) == set(names("connectors"))
    assert [find_connector(name).name for name in SHORT_NAMES] == list(SHORT_NAMES)


# - before and after a change: the facts say where it is -


def configs(connector: str, version: str) -> Plan:
    return plan_of(topology(connector, tuple(map(int, version.split(".")))))


def test_the_switch_for_request_ids() -> None:
    """The suffix came with 0.14.0, its switch with 0.17.0; both roles need it."""
    switch = "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"
    engines = [one for one in configs("p2p_nccl", "0.17.1").instances if one.role != "proxy"]
    assert {one.env.get(switch) for one in engines} == {"1"}
    for version in ("0.14.0", "0.14.1", "0.15.1", "0.16.0"):
        (problem,) = problems_of(topology("p2p_nccl", tuple(map(int, version.split(".")))))
        assert "hangs in vLLM 0.14 to 0.16" in problem.what
    for version in ("0.11.2", "0.13.0"):
        assert all(switch not in one.env for one in configs("p2p_nccl", version).instances)


def test_the_end_of_p2p_nccl() -> None:
    assert configs("p2p_nccl", "0.23.0").connector == "p2p_nccl"
    (problem,) = problems_of(topology("p2p_nccl", (0, 24, 0)))
    assert problem.what == "P2pNcclConnector went away in vLLM 0.24.0, this is 0.24.0"
    assert "`connector: nixl`" in problem.fix


def test_the_fields_that_became_fatal() -> None:
    """kv_port and kv_buffer_size are P2pNccl's alone, and 0.31 was the last to have the second."""
    old = configs("p2p_nccl", "0.23.0").instance("consumer-0").kv_transfer_config
    assert old is not None
    assert {"kv_port", "kv_buffer_size"} <= set(old)
    assert "kv_buffer_size" in release((0, 31, 0)).kv_config_fields
    assert "kv_buffer_size" not in release((0, 32, 0)).kv_config_fields
    for version in ("0.29.0", "0.31.0", "0.32.0", "0.34.0"):
        config = configs("nixl", version).instance("producer-0").kv_transfer_config
        assert config is not None
        assert not {"kv_port", "kv_buffer_size", "kv_rank", "kv_parallel_size", "kv_ip"} & set(config)


def test_mooncakes_ports() -> None:
    """Up to 0.15 every worker listens, from 0.16 on a producer has one bootstrap server."""
    old = plan_of(topology("mooncake", (0, 15, 1), 2))
    new = plan_of(topology("mooncake", (0, 16, 0), 2))
    assert {one.ports["side_channel"].count for one in old.instances} == {2}
    assert {one.role: [use for use in one.ports if use != "http"] for one in new.instances} == {
        "producer": ["bootstrap"],
        "consumer": [],
    }
    assert new.instance("producer-0").env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == str(
        new.instance("producer-0").ports["bootstrap"].first
    )
    assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" not in new.instance("consumer-0").env


def test_the_example_connectors_name() -> None:
    for version, name in (("0.12.0", "SharedStorageConnector"), ("0.13.0", "ExampleConnector")):
        config = configs("example", version).instance("producer-0").kv_transfer_config
        assert config is not None
        assert config["kv_connector"] == name


@pytest.mark.parametrize(
    ("version", "prefill", "decode", "fine"),
    [("0.13.0", 2, 1, False), ("0.13.0", 1, 2, True), ("0.14.0", 2, 1, True), ("0.14.0", 3, 2, False)],
)
def test_nixls_tp_rule(version: str, prefill: int, decode: int, fine: bool) -> None:
    text = (
        f"model: m\nlayout: 1P1D\nconnector: nixl\nengine: {{version: {version}}}\nprefill: {{tp: {prefill}}}\ndecode: {{tp: {decode}}}\n"
        f"hosts: [{{name: local, gpus: {prefill + decode}}}]\n"
    )
    assert (problems_of(text) == []) is fine


@pytest.mark.parametrize(
    ("connector", "version", "role", "fine"),
    [
        ("nixl", "0.34.0", "prefill", False), ("nixl_push", "0.25.1", "prefill", False), ("nixl_push", "0.26.0", "prefill", True),
        ("nixl_push", "0.34.0", "decode", False), ("mooncake", "0.23.0", "prefill", False), ("mooncake", "0.24.0", "decode", True),
        ("moriio", "0.34.0", "prefill", False), ("lmcache", "0.34.0", "decode", False),
    ],
)  # fmt: skip
def test_pipeline_stages(connector: str, version: str, role: str, fine: bool) -> None:
    text = topology(connector, tuple(map(int, version.split(".")))) + f"{role}: {{pp: 2}}\nallow_idle_gpus: true\n"
    found = problems_of(text.replace("gpus: 2", "gpus: 8"))
    assert ([one for one in found if one.path == f"{role}.pp"] == []) is fine


def test_multi_takes_one_mover_and_passes_its_needs_on() -> None:
    plan = configs("multi", "0.34.0")
    producer, consumer = plan.instance("producer-0"), plan.instance("consumer-0")
    config = producer.kv_transfer_config
    assert config is not None
    inside = config["kv_connector_extra_config"]["connectors"]
    assert [one["kv_connector"] for one in inside] == ["NixlConnector", "OffloadingConnector"]
    assert [one["kv_role"] for one in inside] == ["kv_producer", "kv_both"]
    assert inside[1]["kv_connector_extra_config"] == {"num_cpu_blocks": 100}
    assert producer.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(producer.ports["side_channel"].first)
    assert producer.ports["side_channel"].first != consumer.ports["side_channel"].first
    assert plan.connector == "nixl", "the proxy speaks the inner connector's protocol"


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("[nixl, mooncake]", "2 of the connectors inside MultiConnector hand KV over"),
        ("[offloading]", "0 of the connectors inside MultiConnector hand KV over"),
        ("[nixl, {name: multi}]", "MultiConnector inside MultiConnector"),
        ("[nixl, umbp_store]", "vLLM 0.33.0 has no UMBPStoreConnector"),
        ("[nixl, nixxl]", "unknown connector `nixxl`"),
    ],
)
def test_multi_refuses(inside: str, says: str) -> None:
    text = f"model: m\nlayout: 1P1D\nengine: {{version: 0.33.0}}\nconnector: {{name: multi, connectors: {inside}}}\nhosts: [{{name: local, gpus: 2}}]\n"
    found = [one for one in problems_of(text) if says in one.what]
    assert found, problems_of(text)
    assert found[0].path.startswith("connector")


@pytest.mark.parametrize("connector", ["mooncake", "moriio", "lmcache"])
def test_what_pdctls_proxy_does_not_speak_is_said(connector: str) -> None:
    text = topology(connector, (0, 34, 0)).replace("proxy: {kind: none}\n", "")
    (problem,) = problems_of(text)
    assert "does not speak" in problem.what
    assert "proxy.kind: none" in problem.fix


def test_keys_that_a_connector_does_not_read_are_warned_of() -> None:
    text = "model: m\nlayout: 1P1D\nengine: {version: 0.20.2}\nconnector: {name: nixl, extra: {kv_lease_duration: 60, num_thread: 2}}\nhosts: [{name: local, gpus: 2}]\n"
    warnings = " / ".join(plan_of(text).warnings)
    assert "NixlConnector does not read `kv_lease_duration`; releases 0.22.0 to 0.34.0 do" in warnings
    assert "NixlConnector does not read `num_thread`; did you mean `num_threads`?" in warnings


@pytest.mark.parametrize(
    ("connector", "version", "fine"),
    [("nixl", "0.17.1", False), ("nixl", "0.22.1", True), ("p2p_nccl", "0.22.1", False)],
)
def test_models_with_state_layers_need_the_hybrid_cache(connector: str, version: str, fine: bool) -> None:
    from tests.planning import facts

    known = facts(model_config={"layer_types": ["linear_attention", "full_attention"]})
    text = f"model: m\nlayout: 1P1D\nengine: {{version: {version}}}\nconnector: {connector}\nhosts: [{{name: local, gpus: 2}}]\n"
    found = [one for one in problems_of(text, known) if "linear-attention" in one.what]
    assert (found == []) is fine


def test_the_checker_can_fail() -> None:
    old = configs("p2p_nccl", "0.23.0").instance("consumer-0")
    assert [one for one in faults(old, (0, 34, 0)) if "no connector" in one]
    nixl = configs("nixl", "0.34.0").instance("producer-0")
    assert faults(nixl, (0, 34, 0)) == []
    assert faults(nixl, (0, 10, 2)) == [
        "`kv_load_failure_policy` has no effect: this vLLM does not know it and says nothing"
    ]
    assert config_faults({"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_rank": 0}, (0, 32, 0))
    assert config_faults(
        {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_connector_extra_config": {"nope": 1}},
        (0, 32, 0),
    ) == ["NixlConnector does not read nope"]
