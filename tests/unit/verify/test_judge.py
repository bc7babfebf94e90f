"""What a swap test means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdctl.verify.judge import Swap, covering_pairs, judge_pair, judge_swap, leading_equal
from pdctl.verify.prompts import lengths, prompt_pair
from pdctl.verify.report import Equality, PairReport, VerifyReport

A, B, OTHER = (11, 12, 13), (21, 22, 23), (31, 32, 33)
TOKENS = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


def swap(output: tuple[int, ...], a: tuple[int, ...] = A, b: tuple[int, ...] = B) -> Swap:
    return Swap(45, a, b, output)


def test_the_four_outcomes() -> None:
    assert judge_swap(swap(A)).verdict == "used"
    assert judge_swap(swap(B)).verdict == "ignored"
    assert judge_swap(swap(OTHER)).verdict == "damaged"
    assert judge_swap(swap(A, a=A, b=(A[0], 9, 9))).verdict == "inconclusive"
    assert judge_swap(swap(())).verdict == "error"


def test_a_late_difference_is_rounding() -> None:
    assert judge_swap(swap((A[0], 99, 98))).verdict == "used"


def test_one_token_of_truth_is_enough() -> None:
    """P2pNccl: only the producer's own first token is known."""
    assert judge_swap(swap(A, a=A[:1], b=B[:1])).verdict == "used"
    assert judge_swap(swap(B, a=A[:1], b=B[:1])).verdict == "ignored"


@given(TOKENS, TOKENS, TOKENS)
def test_who_is_followed_is_what_counts(a: tuple[int, ...], b: tuple[int, ...], output: tuple[int, ...]) -> None:
    verdict = judge_swap(swap(output, a, b)).verdict
    if a[0] == b[0]:
        assert verdict == "inconclusive"
    else:
        assert verdict == ("used" if output[0] == a[0] else "ignored" if output[0] == b[0] else "damaged")


def test_the_worst_swap_counts() -> None:
    good, same = swap(A), swap(A, a=A, b=A)
    assert judge_pair([good, same, good], 100).verdict == "used"
    assert judge_pair([good, swap(OTHER)], 100).verdict == "damaged"
    assert judge_pair([same], None).verdict == "inconclusive"
    assert judge_pair([], None).verdict == "error"


def test_metrics_decide_only_between_not_moved_and_ignored() -> None:
    assert judge_pair([swap(B)], 0).verdict == "not moved"
    assert judge_pair([swap(B)], 45).verdict == "ignored"
    assert judge_pair([swap(OTHER)], 45).verdict == "damaged", "right metrics with wrong tokens are no proof"
    assert judge_pair([swap(A)], 0).verdict == "used"


@given(TOKENS, TOKENS)
def test_leading_equal(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    count = leading_equal(one, other)
    assert one[:count] == other[:count]
    assert count == min(len(one), len(other)) or one[count] != other[count]


@given(st.integers(1, 7), st.integers(1, 7))
def test_pairs_cover_everybody_with_as_few_as_possible(p: int, d: int) -> None:
    producers, consumers = [f"p{n}" for n in range(p)], [f"d{n}" for n in range(d)]
    pairs = covering_pairs(producers, consumers)
    assert {one for one, _ in pairs} == set(producers)
    assert {other for _, other in pairs} == set(consumers)
    assert len(pairs) == max(p, d)


@given(st.randoms(), st.integers(9, 200))
def test_prompts_differ_and_end_alike(rng: object, length: int) -> None:
    pair = prompt_pair(rng, length)  # type: ignore[arg-type]
    assert len(pair.a) == len(pair.b) == length
    assert pair.a[-4:] == pair.b[-4:]


def test_prompts_fit_the_model() -> None:
    assert lengths(None, big=False) == [45, 77, 141]
    assert lengths(128, big=False) == [45, 77]
    assert lengths(64, big=True) == [32]
    assert lengths(8192, big=True)[-1] == 4001


def test_a_report_says_what_it_found() -> None:
    good = PairReport(
        "producer-0", "consumer-0", "used", "r", tokens=141, expected=141, bytes=1e9, seconds=0.1, gb_per_s=10.0
    )
    bad = PairReport("producer-1", "consumer-0", "ignored", "the KV was not used", tokens=0, expected=141)
    fine = VerifyReport((good,), Equality(4, 4, 0, "producer-0"))
    assert (fine.ok, fine.exit_code, fine.headline) == (True, 0, "KV verified (141/141 tokens, 10 GB/s)")
    wrong = VerifyReport((good, bad), None)
    assert (wrong.ok, wrong.exit_code) == (False, 5)
    assert wrong.headline == "KV NOT verified: producer-1 -> consumer-0: the KV was not used"
    proxy = VerifyReport((good,), Equality(4, 1, 3, "producer-0"))
    assert proxy.exit_code == 5
    assert "1 of 4 outputs through the proxy" in proxy.headline
    assert VerifyReport((good,), Equality(4, 2, 1, "a")).ok, "a late difference is rounding"
    nothing = VerifyReport((), None)
    assert (nothing.ok, nothing.headline) == (True, "nothing to verify: no prefill and decode")
    assert fine.to_dict()["pairs"][0]["verdict"] == "used"
