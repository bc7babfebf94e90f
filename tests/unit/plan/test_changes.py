"""What has to be done to get from what runs to what is planned."""

from __future__ import annotations

from dataclasses import replace

from pdctl.plan.changes import Running, plan_changes
from pdctl.plan.model import GpuSum, HostPlan, InstancePlan, Plan, PortRange, Rank
from pdctl.plan.saved import plan_from_json, plan_to_json


def instance(name: str, *flags: str, host: str = "a") -> InstancePlan:
    role = name.rsplit("-", 1)[0]
    return InstancePlan(
        name=name, role=role, host=host, address="127.0.0.1", gpus=("0",), ranks=(Rank(0, 0, 0, 0, "0"),),  # type: ignore[arg-type]
        ports={"http": PortRange(20000)}, argv=("python", "-m", "engine", *flags), env={"A": "1"}, secret_env=(), kv_transfer_config=None,
    )  # fmt: skip


def plan(*instances: InstancePlan) -> Plan:
    return Plan(
        cluster="c", model="m", served_model_name="m", engine_kind="sim", device="gpu", vllm_version="0.33.0", version_assumed=False,
        connector="nixl", gpus=GpuSum(2, "(1 + 1) x 1 x 1 = 2", 2), hosts=(HostPlan("a", "127.0.0.1", "~/.pdctl", None, ("0", "1")),),
        instances=instances, warnings=(),
    )  # fmt: skip


P0, D0 = instance("producer-0"), instance("consumer-0", "--max-num-seqs", "32")
HASHES = {"producer-0": "p", "consumer-0": "d"}


def text(changes: object) -> list[str]:
    return [str(change) for change in changes]  # type: ignore[attr-defined]


def test_nothing_runs() -> None:
    assert text(plan_changes(plan(P0, D0), HASHES, {}, None)) == [
        "+ producer-0: not running",
        "+ consumer-0: not running",
    ]


def test_everything_runs_as_planned() -> None:
    running = {"producer-0": Running("ready", "a", "p"), "consumer-0": Running("starting", "a", "d")}
    assert text(plan_changes(plan(P0, D0), HASHES, running, None)) == [
        "  producer-0: ready as planned",
        "  consumer-0: starting as planned",
    ]


def test_a_changed_flag_is_named_with_both_values() -> None:
    before = plan(P0, D0)
    after = plan(P0, instance("consumer-0", "--max-num-seqs", "64", "--enforce-eager"))
    running = {"producer-0": Running("ready", "a", "p"), "consumer-0": Running("ready", "a", "old")}
    assert text(plan_changes(after, HASHES, running, before))[1] == (
        "~ consumer-0: args.enforce-eager (unset) -> true, args.max-num-seqs 32 -> 64"
    )


def test_changed_env_gpus_and_host_are_named() -> None:
    moved = replace(D0, env={"A": "2"}, gpus=("1",))
    running = {"consumer-0": Running("ready", "a", "old")}
    assert text(plan_changes(plan(moved), HASHES, running, plan(D0))) == ["~ consumer-0: env.A 1 -> 2, gpus 0 -> 1"]
    elsewhere = replace(D0, host="b")
    assert text(plan_changes(plan(elsewhere), HASHES, running, plan(D0))) == ["~ consumer-0: host a -> b"]


def test_failed_and_removed_instances() -> None:
    running = {
        "producer-0": Running("failed", "a", "p"),
        "consumer-0": Running("stopped", "a", "d"),
        "consumer-1": Running("ready", "a", "x"),
        "consumer-2": Running("stopped", "a", "x"),
    }
    assert text(plan_changes(plan(P0, D0), HASHES, running, None)) == [
        "+ producer-0: failed before",
        "+ consumer-0: not running",
        "- consumer-1: no longer in the topology",
    ]


def test_a_plan_survives_json() -> None:
    import json

    whole = plan(P0, replace(D0, kv_transfer_config={"kv_role": "kv_consumer"}, after=("producer-0",)))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(whole)))) == whole
