"""Variables that users set, against the release that reads them."""

from __future__ import annotations

import pytest

from tests.planning import plan_of, problems_of

PAIR = "model: m\nlayout: 1P1D\nconnector: nixl\nhosts: [{name: local, gpus: 2}]\n"


def warned(text: str) -> list[str]:
    return [one for one in plan_of(text).warnings if ".env." in one]


def test_a_variable_that_went_away_names_the_releases_that_read_it() -> None:
    (warning,) = warned(PAIR + "engine: {version: 0.22.1, env: {VLLM_USE_V1: 1}}\n")
    assert warning.startswith("engine.env.VLLM_USE_V1: vLLM 0.22.1 does not read it: vLLM 0.9.2 to ")
    assert warning.endswith("did; remove it")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("VLLM_LOGGING_LEVL", "did you mean VLLM_LOGGING_LEVEL?"),
        ("vllm_logging_level", "did you mean VLLM_LOGGING_LEVEL?"),
        ("VLLM_PD_ROLE", "nor does any other; remove it"),
    ],
)
def test_a_variable_that_nobody_reads(written: str, says: str) -> None:
    (warning,) = warned(PAIR + f"engine: {{version: 0.22.1}}\ndecode: {{env: {{{written}: x}}}}\n")
    assert warning.startswith(f"decode.env.{written}: ")
    assert warning.endswith(says)


def test_variables_of_others_and_known_ones_are_left_alone() -> None:
    env = "{VLLM_LOGGING_LEVEL: DEBUG, OMP_NUM_THREADS: 4, PYTORCH_CUDA_ALLOC_CONF: 'max_split_size_mb:512'}"
    assert warned(PAIR + f"engine: {{version: 0.22.1, env: {env}}}\n") == []


MOVABLE = "env: {PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'}"


def test_movable_memory_ends_engines_with_a_connector_from_0_21_on() -> None:
    (problem,) = problems_of(PAIR + f"engine: {{version: 0.21.0, {MOVABLE}}}\n")
    assert problem.path == "engine.env.PYTORCH_CUDA_ALLOC_CONF"
    assert problem.line == 5
    assert "NixlConnector has registered; vLLM refuses to start" in problem.what
    (warning,) = warned(PAIR + f"engine: {{version: 0.20.0, {MOVABLE}}}\n")
    assert "transfers fail later" in warning


def test_movable_memory_is_fine_with_the_cumem_allocator_or_without_a_connector() -> None:
    assert warned(PAIR + f"engine: {{version: 0.22.1, {MOVABLE}, args: {{enable-sleep-mode: true}}}}\n") == []
    off = f"engine: {{version: 0.22.1, {MOVABLE}, args: {{enable-sleep-mode: false}}}}\n"
    assert len(problems_of(PAIR + off)) == 1
    alone = "model: m\naggregated: {replicas: 1}\nhosts: [{name: local, gpus: 1}]\n"
    assert warned(alone + f"engine: {{version: 0.22.1, {MOVABLE}}}\n") == []


def test_an_assumed_release_refuses_nothing() -> None:
    (warning,) = warned(PAIR + f"engine: {{{MOVABLE}}}\n")
    assert "vLLM refuses to start" in warning


def test_a_hosts_own_environment_is_checked() -> None:
    text = PAIR.replace("gpus: 2}", "gpus: 2, env: {VLLM_PD_ROLE: p}}") + "engine: {version: 0.22.1}\n"
    (warning,) = warned(text)
    assert warning.startswith("hosts[0].env.VLLM_PD_ROLE: ")
