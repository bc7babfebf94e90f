"""Versions, interpreters and arguments of engines, where hosts or roles differ."""

from __future__ import annotations

import json

import pytest

from pdctl.plan.facts import Facts, HostFacts
from tests.planning import facts, plan_of, problems_of

TWO = (
    "model: m\nlayout: 1P1D\nconnector: nixl\nprefill: {hosts: [a]}\ndecode: {hosts: [b]}\nhosts:\n"
    "  - {name: a, address: 10.0.0.1, gpus: 1}\n  - {name: b, address: 10.0.0.2, gpus: 1}\n"
)


def said(a: str | None, b: str | None) -> Facts:
    return Facts({"a": HostFacts(a), "b": HostFacts(b)}, pdctl_python="python3", directory="/srv", home="/home/u")


def test_hosts_with_different_releases_are_refused() -> None:
    (problem,) = problems_of(TWO, said("0.22.1", "0.33.0"))
    assert (problem.path, problem.line, problem.column) == ("hosts", 6, 1)
    assert "a 0.22.1, b 0.33.0" in problem.what
    assert problem.fix


def test_one_host_that_did_not_answer_does_not_make_the_version_assumed() -> None:
    plan = plan_of(TWO, said("0.22.1", None))
    assert (plan.vllm_version, plan.version_assumed) == ("0.22.1", False)


def test_the_files_version_wins_over_the_hosts() -> None:
    assert plan_of(TWO + "engine: {version: 0.27.0}\n", said("0.22.1", "0.22.1")).vllm_version == "0.27.0"


def test_a_version_that_is_none_is_no_release() -> None:
    (problem,) = problems_of(TWO, said("main", "main"))
    assert "'main'" in problem.what
    assert "engine.version" in problem.fix


def test_an_assumed_version_is_one_that_has_the_connector() -> None:
    text = "model: m\nlayout: 1P1D\nconnector: p2p_nccl\nhosts: [{name: local, gpus: 2}]\n"
    assert (plan_of(text).vllm_version, plan_of(text).version_assumed) == ("0.23.0", True)


def test_each_host_has_its_own_interpreter_activation_interface_and_env() -> None:
    text = TWO.replace("gpus: 1}\n  -", "gpus: 1, python: /a/python, env: {WHO: a}, interface: eth0}\n  -").replace(
        "10.0.0.2, gpus: 1", "10.0.0.2, gpus: 1, activate: . /b/activate, interface: ens1"
    )
    plan = plan_of(text + "engine: {version: 0.33.0, python: /all/python, env: {WHO: all}}\n")
    producer, consumer = plan.instance("producer-0"), plan.instance("consumer-0")
    assert producer.argv[0] == "/a/python"
    assert consumer.argv[:5] == ("/bin/bash", "-c", '. /b/activate && exec "$@"', "pdctl", "/all/python")
    assert (producer.env["WHO"], consumer.env["WHO"]) == ("a", "all")
    for one, interface in ((producer, "eth0"), (consumer, "ens1")):
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")
        assert {one.env[name] for name in names} == {interface}


def test_paths_of_remote_hosts_stay_as_they_are_written() -> None:
    text = (
        TWO.replace("gpus: 1}", "gpus: 1, ssh: {host: x.example}}")
        + "engine: {version: 0.33.0, python: ~/v/bin/python}\n"
    )
    assert plan_of(text).instance("producer-0").argv[0] == "~/v/bin/python"


def test_aggregated_engines_have_no_connector_and_no_kv_ports() -> None:
    text = "model: m\nlayout: 1P1D\nconnector: nixl\naggregated: {replicas: 1}\nengine: {version: 0.33.0}\nhosts: [{name: local, gpus: 3}]\n"
    plan = plan_of(text)
    plain = plan.instance("aggregated-0")
    assert plain.kv_transfer_config is None
    assert "--kv-transfer-config" not in plain.argv
    assert set(plain.ports) == {"http"}
    assert not [name for name in plain.env if "NIXL" in name or name.startswith("UCX")]
    assert plan.proxy is not None
    assert f"aggregated-0={plain.url}" in plan.proxy.argv
    alone = plan_of("model: m\naggregated: {replicas: 2}\nengine: {version: 0.33.0}\nhosts: [{name: local, gpus: 2}]\n")
    assert alone.connector is None
    assert [one.name for one in alone.instances] == ["aggregated-0", "aggregated-1", "proxy"]


def test_every_offending_argument_is_named_in_one_go() -> None:
    """Case 1."""
    text = (
        "model: m\nlayout: 1P1D\nconnector: nixl\nengine:\n  args:\n    port: 8100\n    '--host=0.0.0.0': null\n    max-model-len: 4096\n"
        "prefill:\n  args:\n    tensor_parallel_size: 4\ndecode:\n  args:\n    -dpa: x\n    kv-transfer-config: '{}'\n"
        "hosts: [{name: local, gpus: 2}]\n"
    )
    found = {(one.path, one.line, one.column): one.fix for one in problems_of(text)}
    assert list(found) == [
        ("engine.args.port", 6, 5),
        ("engine.args.--host=0.0.0.0", 7, 5),
        ("prefill.args.tensor_parallel_size", 11, 5),
        ("decode.args.-dpa", 14, 5),
        ("decode.args.kv-transfer-config", 15, 5),
    ]
    assert [next(word for word in ("`ports`", "`address`", "`tp`", "connector") if word in fix) for fix in found.values()] == [
        "`ports`", "`address`", "`tp`", "`address`", "connector",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "path", "says", "fix"),
    [
        ("{--max-model-len=4096: true}", "engine.args.--max-model-len=4096", "lost", "`max-model-len: 4096`"),
        (
            "{max-model-len: 1, max_model_len: 2}",
            "engine.args.max_model_len",
            "`max-model-len` are the same",
            "keep one",
        ),
        ("{q: fp8, --quantization: awq}", "engine.args.--quantization", "`q` are the same", "keep one"),
    ],
)
def test_no_argument_is_lost_without_a_word(args: str, path: str, says: str, fix: str) -> None:
    text = f"model: m\nlayout: 1P1D\nconnector: nixl\nhosts: [{{name: local, gpus: 2}}]\nengine: {{version: 0.33.0, args: {args}}}\n"
    (problem,) = problems_of(text)
    assert (problem.path, problem.line) == (path, 5)
    assert says in problem.what
    assert fix in problem.fix


def test_both_p2p_roles_get_the_switch_and_old_releases_none() -> None:
    """Case 6."""
    text = "model: m\nlayout: 1P1D\nconnector: p2p_nccl\nhosts: [{name: local, gpus: 2}]\n"
    for version, switch in (("0.10.2", None), ("0.17.1", "1"), ("0.22.1", "1")):
        plan = plan_of(text, facts(version))
        engines = [one for one in plan.instances if one.role != "proxy"]
        assert [one.env.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION") for one in engines] == [switch, switch]
        for one in engines:
            assert json.loads(one.argv[one.argv.index("--kv-transfer-config") + 1]) == one.kv_transfer_config
