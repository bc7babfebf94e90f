"""Every way to write the file wrong: exit code 2, a located message with a fix, and nothing started or written."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.conftest import Pdctl, processes_of

GOOD = """\
name: test
model: /data/models/m
layout: 1P1D
tp: 2
connector: nixl
engine: {version: 0.33.0}
hosts:
  - name: local
    gpus: 4
"""


@dataclass
class Bad:
    """A file and what must be said of it."""

    text: str
    place: str
    """`line:column`."""
    path: str
    says: tuple[str, ...]


BAD = {
    "3 GPUs": Bad(GOOD.replace("gpus: 4", "gpus: 3"), "9:", "", ("(1 + 1) x 2 x 1 = 4", "3")),
    "5 GPUs": Bad(GOOD.replace("gpus: 4", "gpus: 5"), "9:", "", ("(1 + 1) x 2 x 1 = 4", "5", "allow_idle_gpus")),
    "declared total differs": Bad(GOOD + "gpus: 8\n", "10:", "gpus", ("(1 + 1) x 2 x 1 = 4", "8")),
    "a duplicate pin": Bad(
        GOOD + "placement:\n  - {instance: producer-0, host: local}\n  - {instance: p0, host: local}\n",
        "12:",
        "placement[1]",
        ("producer-0",),
    ),
    "an unknown key": Bad(GOOD.replace("tp: 2", "tensor_parallel: 2"), "4:1", "tensor_parallel", ("tp",)),
    "a bad layout": Bad(GOOD.replace("1P1D", "1P-1D"), "3:", "layout", ("1P1D",)),
    "a tab": Bad(GOOD.replace("    gpus", "\tgpus"), "9:", "", ("tab",)),
    "a missing model": Bad(GOOD.replace("model: /data/models/m\n", ""), "1:1", "model", ()),
    "a port range too small": Bad(GOOD + "ports: {base: 20000, size: 1}\n", "10:", "ports.size", ("20000",)),
    "a connector that went away": Bad(
        GOOD.replace("connector: nixl", "connector: p2p_nccl"), "5:", "connector", ("0.24", "nixl")
    ),
    "a port in the free arguments": Bad(
        GOOD.replace("engine: {version: 0.33.0}", "engine: {version: 0.33.0, args: {port: 8100}}"),
        "6:",
        "engine.args.port",
        ("port",),
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("command", ["plan", "up"])
def test_a_wrong_file_is_exit_code_2_with_its_place(pdctl: Pdctl, bad: Bad, command: str) -> None:
    (pdctl.cwd / "topology.yaml").write_text(bad.text)
    done = pdctl(command, "topology.yaml")
    assert done.code == 2, done.err
    first = done.err.splitlines()[0]
    assert first.startswith(f"error: topology.yaml:{bad.place}"), done.err
    assert f" {bad.path}" in first
    for word in bad.says:
        assert word in done.err
    as_json = pdctl(command, "topology.yaml", "--json")
    assert as_json.code == 2
    problem = as_json.json["error"]["problems"][0]
    assert problem["file"] == "topology.yaml"
    assert problem["line"] == int(bad.place.split(":")[0])
    assert problem["fix"], "the way out is named"
    assert not (pdctl.home / "test").exists()
    assert processes_of(pdctl.home) == {}


def test_the_good_file_is_planned(pdctl: Pdctl) -> None:
    (pdctl.cwd / "topology.yaml").write_text(GOOD)
    plan = pdctl.ok("plan", "topology.yaml", "--format", "json").json
    assert plan["gpus"] == {"needed": 4, "formula": "(1 + 1) x 2 x 1 = 4", "available": 4}


def test_all_problems_are_shown_at_once(pdctl: Pdctl) -> None:
    (pdctl.cwd / "topology.yaml").write_text(
        "modl: x\nlayout: 1P1D\nreplcas: 2\nconnector: nixl\nprefill: {tensor_parallel: 2}\n"
    )
    done = pdctl("plan", "topology.yaml", "--json")
    assert done.code == 2
    problems = done.json["error"]["problems"]
    assert [(one["path"], one["line"]) for one in problems if "unknown" in one["what"]] == [
        ("modl", 1),
        ("replcas", 3),
        ("prefill.tensor_parallel", 5),
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("plan", "nowhere.yaml"), "no such file"),
        (("plan", "."), "directory"),
        (("plann",), "did you mean"),
        (("up",), "FILE"),
        (("logs", "--since", "yesterday"), "--since"),
        (("down", "--timeout", "soon"), "--timeout"),
        (("status", "-c", "nobody"), "nobody"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(pdctl: Pdctl, args: tuple[str, ...], says: str) -> None:
    done = pdctl(*args)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert says in done.err
    assert "Traceback" not in done.err
