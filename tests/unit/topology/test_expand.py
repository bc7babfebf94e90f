"""${VAR} in values: filled in, typed by where they stand, and never shown."""

from __future__ import annotations

import pytest

from pdctl.topology.load import load_topology
from tests.unit.topology.loading import GOOD, load, only, place, problems

SECRET = "very-secret!value"


@pytest.mark.parametrize(
    ("written", "environ", "model"),
    [
        ("${M}", {"M": "/m"}, "/m"),
        ("${M:-/d}", {}, "/d"),
        ("${M:-/d}", {"M": ""}, "/d"),
        ("${M:-/d}", {"M": "/m"}, "/m"),
        ("a-${M}-b-${N:-n}", {"M": "m"}, "a-m-b-n"),
        ("$${M}", {}, "${M}"),
        ("$$", {}, "$"),
        ("$M", {"M": "m"}, "$M"),
        ("'${M}'", {"M": "1.10"}, "1.10"),
        ("${M}", {"M": "${N}"}, "${N}"),
        ("${M:-a$$b}", {}, "a$b"),
        ("${M:-a:-b}", {}, "a:-b"),
    ],
)
def test_references_are_filled_in(written: str, environ: dict[str, str], model: str) -> None:
    assert load(GOOD.replace("/data/models/m", written), environ=environ).topology.model == model


def test_a_reference_takes_the_type_of_its_place() -> None:
    text = GOOD + (
        'tp: ${TP}\nprefill: {tp: "${TP}", args: {max-model-len: "${LEN}"}}\nallow_idle_gpus: ${IDLE}\n'
        'engine: {version: "${V}", env: {OMP: "${TP}"}}\nhealth: {interval: "${N}s", deep: "${DEEP:-no}"}\n'
        "hosts:\n  - name: ${H:-local}\n    gpus: ${GPUS}\n"
    )
    environ = {"TP": "2", "LEN": "4096", "IDLE": "true", "V": "0.30", "N": "7", "GPUS": "8"}
    topology = load(text, environ=environ).topology
    assert (topology.tp, topology.prefill.tp, topology.allow_idle_gpus) == (2, 2, True)
    assert topology.prefill.args == {"max-model-len": 4096}
    assert topology.engine.version == "0.30"
    assert topology.engine.env == {"OMP": "2"}
    assert topology.health.interval == 7.0
    assert topology.health.deep is False
    assert topology.hosts[0].gpus == 8


def test_the_layout_may_come_from_a_variable() -> None:
    topology = load(GOOD.replace("1P1D", "${LAYOUT:-1P1D}"), environ={"LAYOUT": "2P3D"}).topology
    assert (topology.prefill.replicas, topology.decode.replicas, topology.layout) == (2, 3, "2P3D")


def test_keys_are_never_expanded() -> None:
    assert only(GOOD + "${K}: 2\n", environ={"K": "tp"}).path == "${K}"
    assert load(GOOD + 'engine: {args: {"${K}": 1}}\n', environ={"K": "tp"}).topology.engine.args == {"${K}": 1}


@pytest.mark.parametrize(
    ("written", "what", "fix"),
    [
        ("${NOPE}", "no variable NOPE", "${NOPE:-...}"),
        ("a-${NOPE}-b", "no variable NOPE", "${NOPE:-...}"),
        ("${}", "no reference", "${NAME}"),
        ("${1A}", "no reference", "${NAME}"),
        ("${A B}", "no reference", "${NAME}"),
        ("${A-x}", "no reference", "${NAME:-default}"),
        ("${A", "without its `}`", "$$"),
        ("${A:-${B}}", "another reference", "${NAME:-default}"),
    ],
)
def test_what_cannot_be_filled_in_is_located_and_said_once(written: str, what: str, fix: str) -> None:
    problem = only(GOOD + f"tp: {written}\n", environ={"A": "x", "B": "y"} if ":-" in written else {})
    assert place(problem) == ("tp", 4, 1)
    assert what in problem.what
    assert fix in problem.fix


def test_all_missing_variables_are_said_at_once() -> None:
    found = problems(GOOD + "tp: ${A}\nengine: {args: {x: ['${B}']}}\nproxy:\n  port: ${C}\n")
    assert [place(one) for one in found] == [("tp", 4, 1), ("engine.args.x[0]", 5, 21), ("proxy.port", 7, 3)]


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "tp: ${S}\n",
        GOOD + "tp: x${S}y\n",
        GOOD + "gpus: ${S}\n",
        GOOD + "name: ${S}\n",
        GOOD.replace("1P1D", "${S}"),
        GOOD + "allow_idle_gpus: ${S}\n",
        GOOD + "engine: {kind: '${S}'}\n",
        GOOD + "health: {interval: '${S}'}\n",
        GOOD + "logs: {max_size: '${S}'}\n",
        GOOD + "prefill: {hosts: ['${S}']}\n",
        GOOD + "prefill: '${S}'\n",
        GOOD + "hosts: ${S}\n",
        GOOD + "hosts:\n  - {name: '${S}'}\n",
        GOOD + "hosts:\n  - {name: a, gpus: ['${S}', '${S}']}\n",
        GOOD + "hosts:\n  - {name: a, address: '${S}'}\n  - {name: b, address: '${S}'}\n",
        GOOD + "placement:\n  - {instance: '${S}', host: '${S}'}\n",
        GOOD + "proxy: {host: '${S}', bind: '${S}', api_key_env: '${S}'}\n",
        GOOD + "engine: {env: {HF_TOKEN: '${S}', CUDA_DEVICE_ORDER: '${S}', VLLM_HOST_IP: '${S}'}}\n",
        GOOD + "connector2: ${S}\n",
        GOOD + "tp: ${X:-$${S}}${S}\n",
    ],
)
def test_what_a_variable_holds_is_never_shown(text: str) -> None:
    for problem in problems(text, environ={"S": SECRET}):
        assert SECRET not in str(problem)
        assert SECRET not in repr(problem)


def test_values_of_settings_may_refer_to_variables_and_are_not_shown_either() -> None:
    assert load(GOOD, "tp=${TP}", environ={"TP": "4"}).topology.tp == 4
    problem = only(GOOD, "tp=${TP}", environ={"TP": SECRET})
    assert problem.file == "--set"
    assert SECRET not in str(problem)


def test_a_named_secret_need_not_be_there() -> None:
    file = load_topology(
        GOOD + "proxy: {api_key_env: PDCTL_API_KEY}\n", file="t.yaml", default_name="t", environ={}, overrides=()
    )
    assert file.topology.proxy.api_key_env == "PDCTL_API_KEY"
