"""Tokens survive a round trip, and the next one depends on all KV that is held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdctl.sim.tokens import BYTES, EOS, Model, Tokenizer, damage

TOKENIZER = Tokenizer(1024)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PROMPTS = st.lists(st.integers(0, 1023), min_size=1, max_size=60)


@given(TEXTS)
def test_any_text_survives(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= one < TOKENIZER.size for one in ids)


@given(st.text())
def test_half_a_surrogate_pair_is_encoded_too(text: str) -> None:
    """JSON may hold "\\ud800"; it comes back as a replacement."""
    assert b"".join(map(TOKENIZER.piece, TOKENIZER.encode(text))).decode("utf-8", "surrogatepass") == text
    TOKENIZER.decode(TOKENIZER.encode(text)).encode()


@given(st.lists(st.integers(BYTES, 1023), min_size=1))
def test_words_survive_the_other_way_round(ids: list[int]) -> None:
    """So that what an engine wrote, sent back as text, is the same prompt."""
    assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids


@given(st.integers(1, 30000))
def test_all_words_of_a_vocabulary_differ(vocabulary: int) -> None:
    tokenizer = Tokenizer(vocabulary)
    pieces = {tokenizer.piece(one) for one in range(tokenizer.size)}
    assert len(pieces) == tokenizer.size == max(272, vocabulary)


@given(PROMPTS, st.data())
def test_the_next_token_depends_on_every_earlier_one(prompt: list[int], data: st.DataObject) -> None:
    model = Model(1024, 0)
    at = data.draw(st.integers(0, len(prompt) - 1))
    other = [*prompt[:at], (prompt[at] + 1) % 1024, *prompt[at + 1 :]]
    kv, changed = model.prefill(prompt), model.prefill(other)
    assert list(kv[:at]) == list(changed[:at]), "causal"
    assert all(one != two for one, two in zip(kv[at:], changed[at:], strict=True))


@given(PROMPTS, st.data())
def test_going_on_from_kv_is_the_same_as_computing_it(prompt: list[int], data: st.DataObject) -> None:
    model = Model(1024, 0)
    whole = model.prefill(prompt)
    held = data.draw(st.integers(0, len(prompt)))
    assert model.prefill(prompt, whole[:held]) == whole
    state = model.prefill(prompt[:-1])[-1] if len(prompt) > 1 else None
    if state is not None:
        assert model.step(state, prompt[-1]) == whole[-1]


@given(PROMPTS, PROMPTS)
def test_with_the_kv_of_another_prompt_it_goes_on_as_that_one(a: list[int], b: list[int]) -> None:
    model = Model(1024, 0)
    length = min(len(a), len(b))
    a, b = a[:length], [*b[: length - 1], a[length - 1]]
    assert model.prefill(b, model.prefill(a)[:-1])[-1] == model.prefill(a)[-1]
    if a != b:
        assert model.prefill(b)[-1] != model.prefill(a)[-1]
    if length > 1:
        assert model.prefill(b, damage(model.prefill(a)[:-1]))[-1] not in {model.prefill(a)[-1], model.prefill(b)[-1]}


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32))
def test_tokens_are_words_or_the_end(state: int, noise: int) -> None:
    model = Model(1024, 0)
    token = model.next_token(state, noise=noise, may_end=True)
    assert token == EOS or BYTES <= token < 1024
    assert BYTES <= model.next_token(state, noise=noise, may_end=False) < 1024


def test_seeds_are_other_weights() -> None:
    assert Model(1024, 0).prefill([1])[0] != Model(1024, 1).prefill([1])[0]
