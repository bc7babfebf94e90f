from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.proxy.body import CHAT, COMPLETIONS, decode_parts, needs_one_engine, parse_asked, split, strip_kv, unit_body
from pdctl.proxy.failures import Refused

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(
    st.text(max_size=6).filter(lambda key: key not in ("n", "prompt", "best_of")), VALUES, max_size=5
)


@given(BODIES, st.sampled_from(["", " ", "\n\t "]), st.integers(0, 2))
def test_splicing_adds_the_parameters_and_changes_nothing_else(body: dict[str, Any], blank: str, indent: int) -> None:
    raw = (json.dumps(body, indent=indent or None) + blank).encode()
    asked = parse_asked(COMPLETIONS, raw)
    params = {"remote_host": "}", "n": 1}
    got = b"".join(decode_parts(asked, asked.units[0], params))
    assert json.loads(got) == {**body, "kv_transfer_params": params}
    assert got.startswith(raw.rstrip()[:-1])
    assert b"".join(decode_parts(asked, asked.units[0], None)) == raw


@given(BODIES, VALUES)
def test_the_clients_parameters_never_pass(body: dict[str, Any], own: Any) -> None:
    body = {**body, "kv_transfer_params": own, "vllm_xargs": {"kv_transfer_params": own}}
    asked = parse_asked(CHAT, json.dumps(body).encode())
    assert not asked.spliceable
    for params in (None, {"a": 1}):
        got = json.loads(b"".join(decode_parts(asked, asked.units[0], params)))
        assert got.get("kv_transfer_params") == params
        assert got["vllm_xargs"] == {}


def test_stripping_tells_whether_there_was_anything() -> None:
    assert strip_kv({"vllm_xargs": {"a": 1}, "x": "kv_transfer_params"})
    assert not strip_kv({"kv_transfer_params": None})


@pytest.mark.parametrize(
    ("body", "indices", "prompts"),
    [
        ({"prompt": "a"}, [0], ["a"]),
        ({"prompt": ["a"]}, [0], [["a"]]),
        ({"prompt": [1, 2]}, [0], [[1, 2]]),
        ({"prompt": ["a", "b"]}, [0, 1], ["a", "b"]),
        ({"prompt": [[1], [2]], "n": 2}, [0, 1, 2, 3], [[1], [1], [2], [2]]),
        ({"prompt": "a", "n": 3}, [0, 1, 2], ["a", "a", "a"]),
        ({"prompt": "", "n": None}, [0], [""]),
    ],
)
def test_units_stand_in_the_order_of_one_engine(body: dict[str, Any], indices: list[int], prompts: list[Any]) -> None:
    asked = parse_asked(COMPLETIONS, json.dumps(body).encode())
    assert [unit.index for unit in asked.units] == indices
    assert [unit_body(asked, unit)["prompt"] for unit in asked.units] == prompts
    assert sum(unit.counts_prompt for unit in asked.units) == len({json.dumps(prompt) for prompt in prompts})


def test_embeddings_come_before_prompts() -> None:
    asked = parse_asked(COMPLETIONS, b'{"prompt_embeds": ["e0", "e1"], "prompt": ["a"]}')
    assert [unit_body(asked, unit) for unit in asked.units] == [
        {"prompt_embeds": "e0", "n": 1},
        {"prompt_embeds": "e1", "n": 1},
        {"prompt": "a", "n": 1},
    ]


def test_choices_have_seeds_of_their_own() -> None:
    units = split(CHAT, {"n": 2, "seed": 5, "best_of": 2})
    assert [unit.overrides["seed"] for unit in units] == [5, 6]
    assert all(unit.overrides["best_of"] is None for unit in units)


@pytest.mark.parametrize("body", [{"n": 0}, {"n": True}, {"n": 1.5}, {"best_of": 2}, {"n": 2000}, {"prompt": []}])
def test_what_cannot_be_split_is_a_400(body: dict[str, Any]) -> None:
    with pytest.raises(Refused) as raised:
        split(COMPLETIONS, body)
    assert raised.value.status == 400
    assert raised.value.param in body


def test_options_that_need_one_engine() -> None:
    assert needs_one_engine(COMPLETIONS, {"echo": True, "logprobs": 0}) == "echo"
    assert needs_one_engine(CHAT, {"echo": True, "logprobs": True}) is None
    assert needs_one_engine(CHAT, {"prompt_logprobs": 0}) == "prompt_logprobs"
    assert needs_one_engine(COMPLETIONS, {"echo": True, "logprobs": None, "prompt_logprobs": None}) is None
