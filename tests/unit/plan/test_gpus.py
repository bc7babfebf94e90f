"""The GPU arithmetic in both directions (case 3), placement, and what shares a GPU."""

from __future__ import annotations

import pytest

from tests.planning import facts, plan_of, problems_of

BASE = "model: m\nconnector: nixl\nengine: {version: 0.33.0}\n"


def hosts(*gpus: int) -> str:
    if len(gpus) == 1:
        return f"hosts: [{{name: local, gpus: {gpus[0]}}}]\n"
    return "hosts:\n" + "".join(
        f"  - {{name: h{n}, address: 10.0.0.{n + 1}, gpus: {count}}}\n" for n, count in enumerate(gpus)
    )


@pytest.mark.parametrize(
    ("text", "formula", "needed"),
    [
        ("layout: 1P1D\ntp: 2\n", "(1 + 1) x 2 x 1 = 4", 4),
        ("layout: 2P2D\ntp: 2\ndp: 2\n", "(2 + 2) x 2 x 2 = 16", 16),
        ("layout: 1P1D\npp: 1\naggregated: {replicas: 1}\n", "(1 + 1 + 1) x 1 x 1 = 3", 3),
        ("layout: 2P1D\nprefill: {tp: 1}\ndecode: {tp: 4}\n", "2 x 1 x 1 + 1 x 4 x 1 = 6", 6),
        ("aggregated: {replicas: 2}\ntp: 2\n", "2 x 2 x 1 = 4", 4),
        ("layout: 1P1D\nshare_gpus: 2\n", "(1 + 1) x 1 x 1 = 2 ranks, 2 to a GPU = 1", 1),
    ],
)
def test_the_formula_has_the_users_numbers(text: str, formula: str, needed: int) -> None:
    plan = plan_of(BASE + text + hosts(needed))
    assert (plan.gpus.formula, plan.gpus.needed, plan.gpus.available) == (formula, needed, needed)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("layout: 2P2D\ntp: 2\ndp: 2\ngpus: 8\n" + hosts(8), "gpus", ("(2 + 2) x 2 x 2 = 16", "8")),
        ("layout: 1P1D\ntp: 4\n" + hosts(4), "hosts[0].gpus", ("(1 + 1) x 4 x 1 = 8", "4 GPUs")),
        ("layout: 1P1D\ntp: 1\n" + hosts(8), "hosts[0].gpus", ("6 would be idle", "allow_idle_gpus")),
        ("layout: 1P1D\ntp: 2\n" + hosts(3), "hosts[0].gpus", ("3 GPUs", "(1 + 1) x 2 x 1 = 4")),
        ("layout: 1P1D\ntp: 2\n" + hosts(5), "hosts[0].gpus", ("5 GPUs", "1 would be idle")),
        (
            "layout: 1P1D\ntp: 8\nallow_idle_gpus: true\n" + hosts(8, 8, 4).replace("gpus: 8", "gpus: 6"),
            "tp",
            ("largest has 6", "cannot span hosts"),
        ),
    ],
)
def test_wrong_arithmetic_is_a_located_problem(text: str, path: str, says: tuple[str, ...]) -> None:
    problems = problems_of(BASE + text)
    first = next(one for one in problems if one.path == path)
    assert first.line > 3
    assert first.fix
    for word in says:
        assert word in f"{first.what} {first.fix}"


def test_p2p_nccl_replica_that_fits_no_host_is_refused_in_the_plan() -> None:
    text = "model: m\nconnector: p2p_nccl\nengine: {version: 0.22.1}\nlayout: 1P1D\ntp: 4\n" + hosts(2, 2, 2, 2)
    (problem, *_) = [one for one in problems_of(text) if one.path == "tp"]
    assert "no host can hold a replica of 4" in problem.what


def test_idle_gpus_are_fine_when_the_file_says_so() -> None:
    plan = plan_of(BASE + "layout: 1P1D\nallow_idle_gpus: true\n" + hosts(8))
    assert [one.gpus for one in plan.instances] == [("0",), ("1",), ()]


def test_the_only_fit_is_found() -> None:
    """P: 2 of TP 1, D: 1 of TP 4; hosts with 4 and 2: D must take the first host whole."""
    plan = plan_of(BASE + "layout: 2P1D\nprefill: {tp: 1}\ndecode: {tp: 4}\n" + hosts(4, 2))
    assert {one.name: (one.host, one.gpus) for one in plan.instances if one.gpus} == {
        "consumer-0": ("h0", ("0", "1", "2", "3")),
        "producer-0": ("h1", ("0",)),
        "producer-1": ("h1", ("1",)),
    }


def test_pins_are_kept_and_the_rest_is_packed_around_them() -> None:
    pins = "placement:\n  - {instance: d0, host: local, gpus: [0, 2]}\n"
    plan = plan_of(BASE + "layout: 1P1D\ntp: 2\n" + hosts(4) + pins)
    assert (plan.instance("consumer-0").gpus, plan.instance("producer-0").gpus) == (("0", "2"), ("1", "3"))
    assert plan.instance("consumer-0").env["CUDA_VISIBLE_DEVICES"] == "0,2"


@pytest.mark.parametrize(
    ("pin", "says"),
    [
        ("{instance: p0, host: local, gpus: [0]}", "needs 2 GPUs, 1 are pinned"),
        ("{instance: p0, host: local, gpus: [0, 9]}", "no GPU 9"),
        (
            "{instance: p0, host: local, gpus: [0, 1]}\n  - {instance: d0, host: local, gpus: [1, 2]}",
            "GPU 1 of host local is pinned twice",
        ),
    ],
)
def test_bad_pins(pin: str, says: str) -> None:
    problems = problems_of(BASE + "layout: 1P1D\ntp: 2\n" + hosts(4) + f"placement:\n  - {pin}\n")
    assert any(says in one.what and one.path.startswith("placement") for one in problems), problems


def test_nvml_counts_where_the_file_says_nothing() -> None:
    assert plan_of(BASE + "layout: 1P1D\n", facts(gpus=2)).gpus.available == 2
    assert "no GPU is known" in problems_of(BASE + "layout: 1P1D\n")[0].what
    assumed = plan_of(BASE + "layout: 1P1D\n", facts(assume_gpus=True))
    assert any("GPUs of host local are unknown" in one for one in assumed.warnings)


def test_engines_that_share_a_gpu_divide_it_and_start_in_turn() -> None:
    text = "model: m\nconnector: p2p_nccl\nengine: {version: 0.22.1}\nlayout: 1P1D\nshare_gpus: 2\n" + hosts(1)
    plan = plan_of(text)
    producer, consumer = plan.instance("producer-0"), plan.instance("consumer-0")
    assert producer.gpus == consumer.gpus == ("0",)
    assert producer.argv[producer.argv.index("--gpu-memory-utilization") + 1] == "0.45"
    assert (producer.after, consumer.after) == ((), ("producer-0",))
    assert producer.env["NCCL_HOSTID"] != consumer.env["NCCL_HOSTID"]
    assert any("trying out" in one for one in plan.warnings)
    fixed = plan_of(text.replace("0.22.1}", "0.22.1, args: {kv-cache-memory-bytes: 3G}}"))
    assert fixed.instance("consumer-0").after == ()
