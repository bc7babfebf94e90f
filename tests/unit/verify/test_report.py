"""Reports agree with themselves, whatever was found."""

from __future__ import annotations

import json
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from pdctl.verify.judge import Swap, Verdict, judge_pair, judge_swap
from pdctl.verify.report import Equality, PairReport, VerifyReport

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FIGURES = st.none() | st.floats(0, 1e12)
PAIRS = st.builds(
    PairReport, st.just("producer-0"), st.sampled_from(["consumer-0", "consumer-1"]), st.sampled_from(VERDICTS), st.text(min_size=1),
    tokens=st.none() | st.integers(0, 999), expected=st.integers(0, 999), bytes=FIGURES, seconds=FIGURES, gb_per_s=FIGURES,
    failures=FIGURES,
)  # fmt: skip
EQUALITIES = st.none() | st.integers(0, 8).flatmap(
    lambda prompts: st.builds(Equality, st.just(prompts), st.integers(0, prompts), st.integers(0, prompts), st.just("a"))
)  # fmt: skip
REPORTS = st.builds(
    VerifyReport, st.lists(PAIRS, max_size=4).map(tuple), EQUALITIES, st.just(("slow",)), st.floats(0, 9)
)
TOKENS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
SWAPS = st.lists(st.builds(Swap, st.just(45), TOKENS, TOKENS, TOKENS | st.just(())), min_size=1, max_size=4)


@given(REPORTS)
def test_ok_exit_code_headline_and_json_say_the_same(report: VerifyReport) -> None:
    bad = [pair for pair in report.pairs if pair.verdict not in ("used", "unproven")]
    assert report.exit_code == (0 if report.ok else 5)
    assert not (bad and report.ok)
    if report.pairs:
        assert report.headline.startswith(
            ("KV verified (", "KV moved by the metrics") if report.ok else "KV NOT verified: "
        )
    if bad:
        assert bad[0].reason in report.headline
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (data["schema"], data["ok"], data["exit_code"]) == (1, report.ok, report.exit_code)
    assert [pair["verdict"] for pair in data["pairs"]] == [pair.verdict for pair in report.pairs]
    assert (data["equality"] is None) == (report.equality is None)


@given(REPORTS)
def test_one_bad_pair_spoils_any_report(report: VerifyReport) -> None:
    bad = PairReport("producer-0", "consumer-9", "inconclusive", "no telling")
    assert VerifyReport((*report.pairs, bad), report.equality).exit_code == 5


def test_only_pairs_with_figures_are_summed() -> None:
    counted = PairReport("p0", "d0", "used", "r", tokens=100, expected=100, gb_per_s=9.0)
    silent = PairReport("p1", "d1", "used", "r", tokens=None, expected=100, gb_per_s=0.5)
    assert VerifyReport((counted, silent), None).headline == "KV verified (100/100 tokens, 0.5 GB/s)"
    assert VerifyReport((silent,), None).headline == "KV verified (1 pair, 0.5 GB/s)"


@given(TOKENS, TOKENS, st.lists(st.integers(1, 4), max_size=4))
def test_what_follows_a_is_never_damaged(a: tuple[int, ...], b: tuple[int, ...], tail: list[int]) -> None:
    verdict = judge_swap(Swap(45, a, b, (*a, *tail))).verdict
    assert verdict == ("inconclusive" if a[0] == b[0] else "used")


@given(SWAPS, st.none() | st.integers(0, 200))
def test_a_pair_is_never_better_than_its_worst_swap(swaps: list[Swap], external: int | None) -> None:
    single = [judge_swap(one).verdict for one in swaps]
    clear = {one for one in single if one != "inconclusive"}
    verdict = judge_pair(swaps, external).verdict
    assert (verdict == "used") == (clear == {"used"})
    assert (verdict == "inconclusive") == (not clear)
    assert (verdict == "not moved") == (external == 0 and "ignored" in clear and not clear & {"error", "damaged"})
    assert verdict == judge_pair(swaps[::-1], external).verdict, "the order does not matter"
