"""Flags in every spelling, versions, metrics."""

from __future__ import annotations

import pytest

from pdctl.vllm.flags import argv_of, normal_flag, owned_by
from pdctl.vllm.metrics import growth, parse_metrics
from pdctl.vllm.version import format_version, parse_version


@pytest.mark.parametrize(
    "written",
    [
        "port",
        "--port",
        "--port=8100",
        "tp",
        "-tp",
        "--tensor_parallel_size",
        "tensor-parallel-size",
        "kv_transfer_config",
        "kv-transfer-config.kv_role",
        "dp",
        "-dpr",
        "node-rank",
        "served_model_name",
        "api-key",
    ],
)
def test_flags_that_pdctl_sets(written: str) -> None:
    assert owned_by(written)


@pytest.mark.parametrize(
    "written",
    [
        "max-model-len",
        "--max_num_seqs",
        "tool-call-parser",
        "porter",
        "enforce-eager",
        "compilation-config.cudagraph_mode",
    ],
)
def test_flags_that_are_free(written: str) -> None:
    assert owned_by(written) is None


def test_normal_names() -> None:
    assert {normal_flag(one) for one in ("--tensor_parallel_size=2", "-tp", "tp", "tensor-parallel-size")} == {
        "tensor-parallel-size"
    }


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("compilation-config.cudagraph_mode", ["--compilation-config.cudagraph_mode", "x"]),
        ("-cc.cudagraph_mode", ["--compilation-config.cudagraph_mode", "x"]),
        ("hf_overrides.rope_scaling.rope_type", ["--hf-overrides.rope_scaling.rope_type", "x"]),
        ("cc", ["--compilation-config", "x"]),
        ("-q", ["--quantization", "x"]),
        ("-O", ["-O", "x"]),
        ("Other", ["--Other", "x"]),
    ],
)
def test_fields_keep_their_underscores_and_short_flags_become_long(written: str, words: list[str]) -> None:
    """vLLM 0.32.0 ends with `unrecognized arguments` on --O, --q, --cc, and on a field written with dashes."""
    assert argv_of({written: "x"}) == words


@pytest.mark.parametrize("written", ["-pcp", "prefill_context_parallel_size", "-dpm"])
def test_further_flags_that_change_what_is_planned(written: str) -> None:
    assert owned_by(written)


def test_argv() -> None:
    assert argv_of({"a_b": 1, "c": True, "d": False, "e": None, "f": ["x", {"y": 1}], "g": {"h": [1]}}) == [
        "--a-b", "1", "--c", "--no-d", "--f", "x", '{"y":1}', "--g", '{"h":[1]}',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.22.1", (0, 22, 1)),
        ("0.22.1rc1", (0, 22, 1)),
        ("0.22.1+cu130", (0, 22, 1)),
        ("0.11.2.dev3+gabc", (0, 11, 2)),
        ("v0.33", (0, 33, 0)),
        ("1.0.0.post1", (1, 0, 0)),
    ],
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version
    assert parse_version(format_version(version)) == version


@pytest.mark.parametrize("text", ["newest", "", "0", "0.22.1 or so", "22"])
def test_no_versions(text: str) -> None:
    with pytest.raises(ValueError, match="no vLLM version"):
        parse_version(text)


def test_metrics() -> None:
    text = (
        "# HELP x\n# TYPE vllm:prompt_tokens_by_source_total counter\n"
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 10.0\n'
        'vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="external_kv_transfer"} 5.0\n'
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="a \\"b\\"",source="local_compute"} 1e3\n'
        "plain 7\nnonsense line here\nnan NaN\n"
    )
    found = parse_metrics(text)
    assert found.total("vllm:prompt_tokens_by_source", source="external_kv_transfer") == 15
    assert found.total("vllm:prompt_tokens_by_source") == 1015
    assert found.total("plain") == 7
    assert found.total("absent") is None
    later = parse_metrics(text.replace("10.0", "12.5"))
    assert growth(found, later, "vllm:prompt_tokens_by_source", source="external_kv_transfer") == 2.5
    assert growth(found, later, "absent") is None
