"""The simulated engine's command line refuses what vLLM refuses, in vLLM's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdctl.sim.options import PHASES, parse_options


def given_config(config: Any, version: str = "0.22.1", *more: str) -> Any:
    text = config if isinstance(config, str) else json.dumps(config)
    return parse_options(["--kv-transfer-config", text, "--sim-vllm-version", version, *more])


NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


@pytest.mark.parametrize(
    ("field", "version", "refused"),
    [
        ("kv_rank", "0.22.1", False),
        ("kv_rank", "0.33.0", True),
        ("kv_buffer_size", "0.29.0", False),
        ("kv_buffer_size", "0.33.0", True),
        ("kv_parallel_size", "0.33.0", True),
        ("kv_ip", "0.33.0", True),
        ("kv_prot", "0.14.1", False),
        ("kv_prot", "0.17.1", True),
        ("kv_port", "0.33.0", False),
        ("engine_id", "0.33.0", False),
    ],
)
def test_fields_are_known_by_version(
    field: str, version: str, refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if not refused:
        assert given_config({**NIXL, field: 1}, version).kv_config[field] == 1
        return
    with pytest.raises(SystemExit) as exit_:
        given_config({**NIXL, field: 1}, version)
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert "1 validation error for KVTransferConfig" in said
    assert f"{field}\n  Unexpected keyword argument" in said


def test_all_that_is_wrong_comes_in_one_go(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        given_config({"kv_connector": "NixlConnector", "kv_role": "prefill", "kv_rank": 0, "x": 1}, "0.33.0")
    said = capsys.readouterr().err
    assert "3 validation errors for KVTransferConfig" in said
    assert all(f"{field}\n" in said for field in ("kv_rank", "x", "kv_role"))


def test_a_connector_needs_a_role(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        given_config({"kv_connector": "NixlConnector"})
    assert exit_.value.code == 1
    assert "Please specify kv_role when kv_connector is set" in capsys.readouterr().err


def test_without_a_connector_nothing_is_disaggregated() -> None:
    assert given_config({"kv_role": "kv_producer"}).kv_config is None
    assert parse_options([]).kv_config is None


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "1", "null"])
def test_what_is_no_object_cannot_be_converted(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        given_config(text)
    assert exit_.value.code == 2
    assert "cannot be converted" in capsys.readouterr().err


def test_flags_in_every_spelling_and_unknown_ones() -> None:
    options = parse_options(
        ["--tensor_parallel_size=2", "-pp", "3", "--max-num-seqs", "4", "--enforce-eager", "--cudagraph", "a", "b"]
    )
    assert (options.tp, options.pp) == (2, 3)
    assert options.given["max-num-seqs"] == "4"
    assert options.given["enforce-eager"] is True
    assert options.given["cudagraph"] == "a b"
    assert parse_options(["--model", "/data/models/Qwen3-32B/"]).served_name == "Qwen3-32B"


@pytest.mark.parametrize("text", ["load", "load:burn", "nowhere:exit1", ":", "load:exit1:x"])
def test_failures_are_spelled_phase_and_how(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_options(["--sim-fail", text])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert all(phase in said for phase in PHASES)


def test_a_version_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--sim-vllm-version", "newest"])
    assert "--sim-vllm-version" in capsys.readouterr().err
