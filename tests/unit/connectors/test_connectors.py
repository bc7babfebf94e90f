"""What each connector gives both roles, by vLLM version (cases 5 and 6)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdctl.connectors.base import HandOverError, Peer
from pdctl.connectors.registry import UnknownConnector, find_connector
from pdctl.plan.model import Plan
from tests.planning import facts, plan_of, problems_of

GPUS = "hosts: [{name: local, gpus: 2}]\n"


def plan_for(connector: str, version: str, more: str = "", model: str = "m", known: Any = None) -> Plan:
    return plan_of(
        f"model: {model}\nlayout: 1P1D\nconnector: {connector}\nengine: {{version: {version}}}\n{GPUS}{more}",
        known or facts(),
    )


def config(plan: Plan, name: str) -> dict[str, Any]:
    argv = plan.instance(name).argv
    found: dict[str, Any] = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    assert found == plan.instance(name).kv_transfer_config
    return found


def test_nixl_configs() -> None:
    plan = plan_for("nixl", "0.33.0")
    assert config(plan, "producer-0") == {
        "kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_buffer_device": "cuda", "kv_load_failure_policy": "fail",
    }  # fmt: skip
    assert config(plan, "consumer-0")["kv_role"] == "kv_consumer"
    env = plan.instance("consumer-0").env
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert int(env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == plan.instance("consumer-0").ports["side_channel"].first
    assert env["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] == "on"
    assert "kv_load_failure_policy" not in config(plan_for("nixl", "0.11.2"), "producer-0"), "the field came with 0.14"


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_fields_that_became_fatal_are_never_written(version: str) -> None:
    for name in ("producer-0", "consumer-0"):
        assert not {"kv_rank", "kv_parallel_size", "kv_buffer_size", "kv_ip", "kv_port"} & set(
            config(plan_for("nixl", version), name)
        )


def test_nixl_side_channel_width_depends_on_the_version() -> None:
    """Case 4: four ports each at TP 4 up to 0.10.2, one each later."""
    wide = plan_of(
        "model: m\nlayout: 1P1D\ntp: 4\nconnector: nixl\nengine: {version: 0.10.2}\nhosts: [{name: local, gpus: 8}]\n"
    )
    narrow = plan_of(
        "model: m\nlayout: 1P1D\ntp: 4\nconnector: nixl\nengine: {version: 0.22.1}\nhosts: [{name: local, gpus: 8}]\n"
    )
    assert {one.ports["side_channel"].count for one in wide.instances if one.role != "proxy"} == {4}
    assert {one.ports["side_channel"].count for one in narrow.instances if one.role != "proxy"} == {1}


def test_nixl_on_cpu() -> None:
    plan = plan_of("model: m\nlayout: 1P1D\nconnector: nixl\nengine: {version: 0.32.0, device: cpu}\n")
    env = plan.instance("producer-0").env
    assert config(plan, "producer-0")["kv_buffer_device"] == "cpu"
    assert (env["UCX_TLS"], env["CUDA_VISIBLE_DEVICES"], env["VLLM_CPU_OMP_THREADS_BIND"]) == (
        "tcp,sm,self",
        "",
        "nobind",
    )


def test_p2p_nccl_configs() -> None:
    plan = plan_for("p2p_nccl", "0.22.1")
    producer, consumer = config(plan, "producer-0"), config(plan, "consumer-0")
    assert (producer["kv_role"], consumer["kv_role"]) == ("kv_producer", "kv_consumer")
    for name, one in (("producer-0", producer), ("consumer-0", consumer)):
        extra = one["kv_connector_extra_config"]
        assert extra["proxy_port"] == str(plan.proxy.ports["registration"].first)  # type: ignore[union-attr]
        assert extra["http_port"] == str(plan.instance(name).ports["http"].first)
        assert isinstance(extra["mem_pool_size_gb"], str)
        assert one["kv_port"] == plan.instance(name).ports["kv"].first
        assert plan.instance(name).env["VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"] == "1"
    assert producer["kv_port"] != consumer["kv_port"]
    assert "kv_buffer_size" not in producer, "a producer that pushes reads none"
    assert consumer["kv_buffer_size"] == 4_000_000_000


def test_a_p2p_producer_that_is_asked_keeps_its_kv() -> None:
    """With send_type GET the producer holds KV until it is fetched, and drops what is above kv_buffer_size."""
    text = "model: m\nlayout: 1P1D\nconnector: {name: p2p_nccl, extra: {send_type: GET}}\nengine: {version: 0.22.1}\n"
    plan = plan_of(text + GPUS, facts())
    for name in ("producer-0", "consumer-0"):
        assert config(plan, name)["kv_connector_extra_config"]["send_type"] == "GET"
        assert config(plan, name)["kv_buffer_size"] == 4_000_000_000


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("0.10.2", ""),
        ("0.14.1", "hangs"),
        ("0.17.1", ""),
        ("0.22.1", ""),
        ("0.23.0", ""),
        ("0.24.0", "went away in vLLM 0.24"),
        ("0.33.0", "went away in vLLM 0.24"),
    ],
)
def test_p2p_nccl_by_version(version: str, refused: str) -> None:
    text = f"model: m\nlayout: 1P1D\nconnector: p2p_nccl\nengine: {{version: {version}}}\n{GPUS}"
    problems = problems_of(text)
    if not refused:
        assert problems == []
        randomised = version != "0.10.2"
        assert ("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION" in plan_of(text).instance("producer-0").env) is randomised
        return
    (problem,) = problems
    assert (problem.path, problem.line) == ("connector", 3)
    assert refused in problem.what
    assert "nixl" in problem.fix


@pytest.mark.parametrize(
    ("model", "model_config", "version", "v1"),
    [
        ("/m/Qwen3-32B", None, "0.22.1", True),
        ("/m/x", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "0.22.1", True),
        ("/m/Qwen3-32B", {"model_type": "llama"}, "0.22.1", False),
        ("/m/Qwen3-32B", None, "0.20.2", False),
        ("/m/Llama", None, "0.22.1", False),
    ],
)
def test_qwen3_on_the_v2_runner_is_avoided(model: str, model_config: Any, version: str, v1: bool) -> None:
    """0 of 12 outputs were right with its CUDA graphs, HTTP 200 and every metric as expected (vLLM 0.22.1 on an H200)."""
    plan = plan_for("p2p_nccl", version, model=model, known=facts(model_config=model_config))
    assert (plan.instance("consumer-0").env.get("VLLM_USE_V2_MODEL_RUNNER") == "0") is v1
    assert "VLLM_USE_V2_MODEL_RUNNER" not in plan.instance("producer-0").env


def test_the_users_own_choice_wins_over_a_default() -> None:
    plan = plan_for(
        "p2p_nccl",
        "0.22.1",
        "decode: {env: {VLLM_USE_V2_MODEL_RUNNER: 1}}\nprefill: {args: {enforce-eager: true}}\n",
        model="Qwen3",
    )
    assert plan.instance("consumer-0").env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert "--compilation-config" not in plan.instance("producer-0").argv
    assert "--compilation-config" in plan_for("p2p_nccl", "0.22.1").instance("producer-0").argv


@pytest.mark.parametrize(
    ("version", "args", "piecewise"),
    [
        ("0.22.1", "{max-num-seqs: 8}", True),
        ("0.22.1", "{O: 3}", True),
        ("0.11.2", "{O: 3}", False),
        ("0.22.1", "{-cc: {mode: 0}}", False),
        ("0.22.1", "{compilation-config.mode: 3}", False),
        ("0.10.2", "{}", False),
    ],
)
def test_piecewise_graphs_on_prefill_unless_the_user_chose(version: str, args: str, piecewise: bool) -> None:
    plan = plan_for("p2p_nccl", version, f"prefill: {{args: {args}}}\n")
    given = '{"cudagraph_mode":"PIECEWISE"}'
    assert (given in plan.instance("producer-0").argv) is piecewise
    assert given not in plan.instance("consumer-0").argv
    assert any("piecewise" in one for one in plan.warnings) is piecewise


@pytest.mark.parametrize(
    ("connector", "version", "more", "path", "says"),
    [
        ("p2p_nccl", "0.22.1", "prefill: {tp: 2}\n", "decode.tp", "same TP"),
        ("p2p_nccl", "0.22.1", "dp: 2\n", "dp", "DP ranks"),
        ("nixl", "0.22.1", "prefill: {tp: 3}\ndecode: {tp: 2}\n", "decode.tp", "must divide"),
        ("nixl", "0.10.2", "prefill: {tp: 2}\n", "decode.tp", "at least as large"),
        ("nixl", "0.33.0", "prefill: {pp: 2}\n", "prefill.pp", "pipeline"),
        ("{name: nixl, extra: {kv_rank: 0}}", "0.33.0", "", "connector.extra.kv_rank", "kv_rank"),
        ("{name: p2p_nccl, extra: {proxy_port: 30001}}", "0.22.1", "", "connector.extra.proxy_port", "proxy_port"),
        ("nixxl", "0.33.0", "", "connector", "unknown connector"),
    ],
)
def test_rules(connector: str, version: str, more: str, path: str, says: str) -> None:
    text = f"model: m\nlayout: 1P1D\nconnector: {connector}\nengine: {{version: {version}}}\nallow_idle_gpus: true\nhosts: [{{name: local, gpus: 8}}]\n{more}"
    found = [one for one in problems_of(text) if one.path == path]
    assert found, problems_of(text)
    assert says in found[0].what
    assert found[0].fix


def test_names() -> None:
    assert find_connector("NixlConnector").name == find_connector("nixl").name == "nixl"
    assert find_connector("P2pNcclConnector").name == "p2p_nccl"
    with pytest.raises(UnknownConnector) as unknown:
        find_connector("NixlConector")
    assert unknown.value.nearest == "nixl"


# - hand-over -

CLIENT = {
    "model": "m", "prompt": "x", "max_tokens": 500, "min_tokens": 100, "max_completion_tokens": 64, "stream": True, "stream_options": {"include_usage": True},
    "stop": ["a"], "stop_token_ids": [1], "n": 2, "best_of": 3, "temperature": 0.7, "tools": [{}], "tool_choice": "required",
    "response_format": {"type": "json_object"}, "kv_transfer_params": {"remote_host": "evil"}, "logprobs": 5, "echo": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["nixl", "p2p_nccl"])
def test_the_prefill_leg_is_one_token_of_the_same_prompt(name: str) -> None:
    body = find_connector(name).handover.prefill_body(CLIENT)
    wanted = {
        "model": "m",
        "prompt": "x",
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "n": 1,
        "stream": False,
        "ignore_eos": True,
        "temperature": 0.7,
    }
    assert {key: body[key] for key in wanted} == wanted
    assert not {
        "min_tokens",
        "stream_options",
        "stop",
        "stop_token_ids",
        "best_of",
        "response_format",
        "logprobs",
        "echo",
    } & set(body)
    assert body["tool_choice"] == "none"
    if name == "nixl":
        assert body["kv_transfer_params"]["do_remote_decode"] is True
        assert body["kv_transfer_params"]["remote_host"] is None, "a client's own parameters never reach an engine"
    else:
        assert "kv_transfer_params" not in body


GOOD = {
    "do_remote_prefill": True,
    "remote_engine_id": "e",
    "remote_block_ids": [[1, 2]],
    "remote_host": "h",
    "remote_port": 1,
    "tp_size": 2,
}


def test_nixl_passes_good_parameters_on_verbatim() -> None:
    found = find_connector("nixl").handover.decode_params({"kv_transfer_params": GOOD})
    assert found == {**GOOD, "do_remote_decode": False}


@pytest.mark.parametrize(
    "bad",
    [
        None,
        {},
        {**GOOD, "remote_block_ids": []},
        {**GOOD, "remote_host": None},
        {key: GOOD[key] for key in GOOD if key != "remote_engine_id"},
    ],
)
def test_nixl_never_passes_parameters_that_hang_or_kill_the_consumer(bad: Any) -> None:
    with pytest.raises(HandOverError):
        find_connector("nixl").handover.decode_params({"kv_transfer_params": bad})


def test_p2p_request_ids_carry_both_addresses_and_no_further_colon() -> None:
    handover = find_connector("p2p_nccl").handover
    found = handover.request_id("a:b", Peer("p", "", "10.0.0.1:21001"), Peer("d", "", "10.0.0.2:22001"))
    assert found == "___prefill_addr_10.0.0.1:21001___decode_addr_10.0.0.2:22001_a-b"
    with pytest.raises(ValueError, match="no KV address"):
        handover.request_id("a", Peer("p", "", None), Peer("d", "", "x:1"))
