"""`up`, `status`, `logs`, `verify` and `down` with simulated engines: real processes and sockets on this machine."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Pdctl, eventually, processes_of


def complete(url: str, **body: Any) -> dict[str, Any]:
    """Ask for a completion and return the answer."""
    data = {"model": "tiny", "prompt": "one two three four five six seven", "max_tokens": 8, "temperature": 0, **body}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(data).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def alive(pid: int) -> bool:
    """Say whether a process lives (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def listening(port: int) -> bool:
    """Say whether somebody takes connections on a local port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def pids(pdctl: Pdctl) -> dict[str, int]:
    return {one["name"]: one["pid"] for one in pdctl.status()["instances"]}


@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
def test_up_brings_a_pair_to_life_and_down_leaves_nothing(pdctl: Pdctl, connector: str) -> None:
    file = pdctl.topology(connector=connector)
    up = pdctl.ok("up", str(file), "--json").json
    assert up["verify"]["ok"] is True
    assert {change["action"] for change in up["changes"]} == {"start"}
    status = pdctl("status", "--json")
    assert status.code == 0
    assert status.json["state"] == "ready"
    assert [one["name"] for one in status.json["instances"]] == ["producer-0", "consumer-0", "proxy"]
    assert all(one["state"] == "ready" and alive(one["pid"]) for one in status.json["instances"])
    answer = complete(up["url"])
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    assert answer["usage"]["prompt_tokens"] > 0
    ports = [one["port"] for one in status.json["instances"]]
    assert all(listening(port) for port in ports)
    down = pdctl.ok("down", "--json").json
    assert down["clean"] is True
    assert sorted(down["stopped"]) == ["consumer-0", "producer-0", "proxy"]
    assert processes_of(pdctl.home) == {}
    assert not any(listening(port) for port in ports)
    again = pdctl.ok("down", "--json").json
    assert again["stopped"] == []
    assert again["clean"] is True
    assert pdctl("status").code == 3


def test_a_second_up_has_nothing_to_do(pdctl: Pdctl) -> None:
    file = pdctl.topology()
    pdctl.ok("up", str(file))
    before = pids(pdctl)
    up = pdctl.ok("up", str(file), "--json").json
    assert up["changes"] == []
    assert pids(pdctl) == before


def test_up_completes_what_is_half_up(pdctl: Pdctl) -> None:
    file = pdctl.topology(restart={"policy": "never"})
    pdctl.ok("up", str(file))
    before = pids(pdctl)
    os.kill(before["consumer-0"], signal.SIGKILL)
    eventually(lambda: pdctl.instance("consumer-0")["state"] == "failed", what="the death is seen")
    failed = pdctl.instance("consumer-0")
    assert "SIGKILL" in failed["reason"]
    assert pdctl("status").code == 3
    up = pdctl.ok("up", str(file), "--json").json
    assert [(one["instance"], one["action"]) for one in up["changes"]] == [("consumer-0", "start")]
    after = pids(pdctl)
    assert after["producer-0"] == before["producer-0"]
    assert after["consumer-0"] != before["consumer-0"]


def test_a_changed_file_shows_a_diff_and_restarts_only_what_it_concerns(pdctl: Pdctl) -> None:
    file = pdctl.topology()
    pdctl.ok("up", str(file))
    before = pids(pdctl)
    change = ("--set", "decode.args.max-num-seqs=64")
    refused = pdctl("up", str(file), *change)
    assert refused.code == 2
    assert "~ consumer-0: args.max-num-seqs (unset) -> 64" in refused.err
    assert pids(pdctl) == before
    looked = pdctl.ok("up", str(file), *change, "--dry-run", "--json").json
    assert [(one["instance"], one["action"]) for one in looked["changes"]] == [("consumer-0", "restart")]
    assert pids(pdctl) == before
    differs = pdctl("plan", str(file), *change, "--exit-code", "--format", "json")
    assert differs.code == 6
    assert pdctl("plan", str(file), "--exit-code").code == 0
    pdctl.ok("up", str(file), *change, "-y")
    after = pids(pdctl)
    assert after["producer-0"] == before["producer-0"]
    assert after["consumer-0"] != before["consumer-0"]


def test_scaling_up_leaves_the_running_engines_alone(pdctl: Pdctl) -> None:
    file = pdctl.topology()
    pdctl.ok("up", str(file))
    before = pids(pdctl)
    up = pdctl.ok("up", str(file), "--set", "layout=1P2D", "-y", "--json").json
    actions = {one["instance"]: one["action"] for one in up["changes"]}
    assert actions == {"consumer-1": "start", "proxy": "restart"}
    after = pids(pdctl)
    assert after["producer-0"] == before["producer-0"]
    assert after["consumer-0"] == before["consumer-0"]
    down = pdctl.ok("up", str(file), "-y", "--json").json
    assert {one["instance"]: one["action"] for one in down["changes"]} == {"consumer-1": "stop", "proxy": "restart"}


FAILURES = {
    "exit 1 with a config error": ("config:exit1", "exit code 1"),
    "a worker killed while loading": ("load:kill-worker", ""),
    "exit 0 while loading": ("load:exit0", "exit code 0"),
    "killed while loading": ("load:kill", "SIGKILL"),
}


@pytest.mark.parametrize(("how", "reason"), FAILURES.values(), ids=FAILURES)
def test_death_before_ready_ends_up_at_once(pdctl: Pdctl, how: str, reason: str) -> None:
    """Case 11: a dead engine is reported within seconds, not at the start-up timeout, and the rest is stopped."""
    file = pdctl.topology(prefill={"args": {"sim-fail": how, "sim-startup": 0.5}}, decode={"args": {"sim-startup": 30}})
    began = time.monotonic()
    up = pdctl("up", str(file), "--json")
    assert time.monotonic() - began < 15
    assert up.code == 1
    error = up.json["error"]
    assert error["instance"] == "producer-0"
    assert reason in error["message"]
    assert error["lines"], "the decisive log lines are shown"
    states = {one["name"]: one["state"] for one in pdctl.status()["instances"]}
    assert states["producer-0"] == "failed"
    assert states["consumer-0"] == "stopped"
    assert processes_of(pdctl.home) == {}


def test_the_root_cause_is_shown_not_the_wrapper(pdctl: Pdctl) -> None:
    file = pdctl.topology(prefill={"args": {"sim-fail": "load:oom"}})
    up = pdctl("up", str(file))
    assert up.code == 1
    assert "producer-0" in up.err
    assert "out of memory" in up.err.lower()
    assert "Engine core initialization failed" not in up.err


def test_a_failed_instance_is_explained_by_status_and_logs(pdctl: Pdctl) -> None:
    file = pdctl.topology(prefill={"args": {"sim-fail": "load:oom"}})
    assert pdctl("up", str(file), "--json").code == 1
    failed = pdctl.instance("producer-0")
    assert failed["cause"].startswith("the GPU is out of memory")
    assert "use a larger tp" in failed["fix"]
    assert (pdctl.instance("consumer-0")["cause"], pdctl.instance("consumer-0")["fix"]) == (None, None)
    assert f"cause: {failed['cause']}" in pdctl("status").out.replace("\n", " ")
    [row] = pdctl.ok("logs", "--explain", "--json").json["causes"]
    assert (row["instance"], row["kind"], row["cause"], row["fix"]) == (
        "producer-0",
        "cause",
        failed["cause"],
        failed["fix"],
    )
    assert "OutOfMemoryError" in row["lines"][-1]
    assert row["releases"] == [], "torch says it, not vLLM"
    shown = pdctl.ok("logs", "p0", "--explain").out
    assert "fix: " in shown
    assert "Engine core initialization failed" not in shown


@pytest.mark.parametrize("keep", [False, True])
def test_ctrl_c_stops_what_was_started_unless_keep(pdctl: Pdctl, keep: bool) -> None:
    file = pdctl.topology(engine={"args": {"sim-startup": 60}})
    process = pdctl.popen("up", str(file), *(["--keep"] if keep else []))
    eventually(
        lambda: pids(pdctl).get("consumer-0") if (pdctl.home / ".known").exists() else None, what="engines start"
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    if keep:
        assert pdctl.instance("producer-0")["state"] == "starting"
    else:
        assert processes_of(pdctl.home) == {}
        assert pdctl.status()["state"] == "stopped"


def test_up_after_a_killed_up_adopts_what_runs(pdctl: Pdctl) -> None:
    """Case 9: pdctl dies half-way; the next `up` finishes the rest and never starts a second copy."""
    file = pdctl.topology(engine={"args": {"sim-startup": 2}})
    process = pdctl.popen("up", str(file))
    first = eventually(
        lambda: (found := pids(pdctl)) and all(found.values()) and found if (pdctl.home / ".known").exists() else None,
        what="all instances run",
    )
    process.kill()
    process.communicate()
    for _ in range(3):
        again = pdctl.popen("up", str(file))
        time.sleep(0.3)
        again.kill()
        again.communicate()
    assert pdctl.ok("up", str(file), "--json").json["changes"] == []
    assert pids(pdctl) == first


def test_hang_up_does_not_touch_what_runs(pdctl: Pdctl) -> None:
    """Case 9: the operator's terminal is closed; the instances stay."""
    file = pdctl.topology()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(pdctl.cwd)
        import sys

        os.execve(sys.executable, [sys.executable, "-m", "pdctl", "up", str(file)], pdctl.environment())
    screen = b""
    while b"serves tiny" not in screen:
        try:
            screen += os.read(terminal, 4096)
        except OSError:
            break
    assert b"serves tiny" in screen, screen.decode(errors="replace")
    os.close(terminal)  # hangs up
    os.waitpid(pid, 0)
    assert pdctl.status()["state"] == "ready"
    assert complete(pdctl.status()["url"])["choices"]


def test_a_taken_port_is_a_blocker_that_names_its_owner(pdctl: Pdctl) -> None:
    file = pdctl.topology()
    plan = pdctl.ok("plan", str(file), "--format", "json").json
    port = next(one for one in plan["instances"] if one["name"] == "consumer-0")["ports"]["http"]
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", port))
        taker.listen()
        up = pdctl("up", str(file), "--json")
    assert up.code == 4
    finding = up.json["error"]["findings"][0]
    assert str(port) in finding["what"]
    assert "consumer-0" in finding["what"]
    assert str(os.getpid()) in finding["what"]
    assert finding["fix"]
    assert processes_of(pdctl.home) == {}


KV_FAULTS = {
    "computed again on the consumer": ({"sim-ignore-kv": True}, {}, "not used"),
    "damaged on the way": ({"sim-damage-kv": True}, {}, ""),
}


@pytest.mark.parametrize(("decode", "prefill", "says"), KV_FAULTS.values(), ids=KV_FAULTS)
@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
def test_kv_that_is_not_used_ends_with_exit_code_5(
    pdctl: Pdctl, connector: str, decode: dict[str, Any], prefill: dict[str, Any], says: str
) -> None:
    file = pdctl.topology(connector=connector, decode={"args": decode}, prefill={"args": prefill})
    up = pdctl("up", str(file), "--json")
    assert up.code == 5, up.err
    report = up.json["verify"]
    assert report["ok"] is False
    assert report["pairs"][0]["verdict"] == ("ignored" if "sim-ignore-kv" in decode else "damaged")
    assert says in up.json["headline"]
    assert pdctl("verify").code == 5
    assert pdctl.status()["verify"]["ok"] is False


def test_a_failed_verification_says_what_the_engines_logged(pdctl: Pdctl) -> None:
    file = pdctl.topology(connector="nixl", prefill={"args": {"sim-drop-kv": True}})
    up = pdctl("up", str(file), "--json")
    assert up.code == 5, up.err
    logged = [warning for warning in up.json["verify"]["warnings"] if warning.startswith("consumer-0 logged: ")]
    assert logged, up.json["verify"]


def test_kill_9_of_the_front_process_ends_its_tree_and_restarts_it(pdctl: Pdctl) -> None:
    """Case 8: children and grandchildren in their own session go before the restart; the signal is on record."""
    file = pdctl.topology(engine={"args": {"sim-tree": True}})
    pdctl.ok("up", str(file))
    before = pdctl.instance("producer-0")
    tree = {
        pid for pid, command in processes_of(pdctl.home).items() if alive(pid) and _instance_of(pid) == "producer-0"
    }
    assert before["pid"] in tree
    assert len(tree) >= 3, "the simulated engine has children"
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in tree), 8, "the old tree is gone")
    eventually(lambda: pdctl.instance("producer-0")["state"] == "ready", 15, "it is restarted")
    after = pdctl.instance("producer-0")
    assert after["restarts"] == 1
    assert after["pid"] != before["pid"]
    runs = json.loads((pdctl.home / "test" / "producer-0" / "state.json").read_text())["runs"]
    assert [run["signal"] for run in runs] == ["SIGKILL", None]
    assert pdctl.ok("verify", "--json").json["ok"] is True


def test_kill_9_then_down_finds_every_descendant(pdctl: Pdctl) -> None:
    file = pdctl.topology(engine={"args": {"sim-tree": True}})
    other = pdctl.topology("other.yaml", name="other", engine={"kind": "sim", "args": {"sim-tree": True}})
    pdctl.ok("up", str(file))
    pdctl.ok("up", str(other))
    other_pids = {one["pid"] for one in pdctl.status("-c", "other")["instances"]}
    marks = {one: _environ(one).get("PDCTL_TREE", "").split("/")[0] for one in processes_of(pdctl.home)}
    test_mark = marks[pdctl.status("-c", "test")["instances"][0]["pid"]]
    before = {one for one, mark in marks.items() if mark == test_mark}
    os.kill(
        next(one for one in pdctl.status("-c", "test")["instances"] if one["name"] == "producer-0")["pid"],
        signal.SIGKILL,
    )
    assert pdctl.ok("down", "-c", "test", "--json").json["clean"] is True
    left = processes_of(pdctl.home)
    assert not {pid for pid in left if _instance_of(pid)} & before, left
    assert all(alive(pid) for pid in other_pids), "the other cluster, with the same command lines, is untouched"


def test_a_killed_shim_is_not_reported_ready_and_down_still_ends_the_tree(pdctl: Pdctl) -> None:
    file = pdctl.topology(engine={"args": {"sim-tree": True}})
    pdctl.ok("up", str(file))
    state = json.loads((pdctl.home / "test" / "consumer-0" / "state.json").read_text())
    os.kill(state["shim_pid"], signal.SIGKILL)
    eventually(lambda: not alive(state["shim_pid"]), 5)
    seen = pdctl.instance("consumer-0")
    assert seen["state"] == "failed"
    assert "supervisor" in seen["reason"]
    assert pdctl.ok("down", "--json").json["clean"] is True
    assert processes_of(pdctl.home) == {}


def test_two_changes_at_once_are_refused_with_the_holder_named(pdctl: Pdctl) -> None:
    file = pdctl.topology(engine={"args": {"sim-startup": 20}})
    first = pdctl.popen("up", str(file))
    eventually(
        lambda: pids(pdctl).get("consumer-0") if (pdctl.home / ".known").exists() else None,
        what="the first up is at work",
    )
    second = pdctl("down", "--json")
    assert second.code == 1
    error = second.json["error"]
    assert error["type"] == "LockHeld"
    assert "pdctl up" in error["message"]
    assert str(first.pid) in error["message"]
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    assert first.returncode == 130


def test_several_clusters_must_be_named(pdctl: Pdctl) -> None:
    pdctl.ok("up", str(pdctl.topology("a.yaml", name="aa", layout="0P0D", connector=None, aggregated={"replicas": 1})))
    pdctl.ok("up", str(pdctl.topology("b.yaml", name="bb", layout="0P0D", connector=None, aggregated={"replicas": 1})))
    status = pdctl("status")
    assert status.code == 2
    assert "aa" in status.err
    assert "bb" in status.err
    assert pdctl("status", "-c", "bb").code == 0
    listed = pdctl.ok("ls", "--json").json
    assert [(one["cluster"], one["state"]) for one in listed["clusters"]] == [("aa", "ready"), ("bb", "ready")]


def test_aggregated_replicas_serve_through_the_same_proxy(pdctl: Pdctl) -> None:
    up = pdctl.ok("up", str(pdctl.topology(layout="0P0D", connector=None, aggregated={"replicas": 2})), "--json").json
    assert up["verify"]["ok"] is True
    assert complete(up["url"])["choices"][0]["text"]


def test_a_hanging_consumer_shows_as_silence(pdctl: Pdctl) -> None:
    """A P2pNccl consumer whose KV never comes hangs with /health 200 and its counters at 0; the proxy knows."""
    file = pdctl.topology(connector="p2p_nccl", prefill={"args": {"sim-drop-kv": True}})
    up = pdctl.ok("up", str(file), "--no-verify", "--json").json
    body = json.dumps({"model": "tiny", "prompt": "one two three", "max_tokens": 4}).encode()
    host, port = up["url"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)

        def silence() -> float:
            with urllib.request.urlopen(f"{up['url']}/pdctl/instances", timeout=5) as answer:
                known = {one["name"]: one for one in json.load(answer)["instances"]}
            return float(known["consumer-0"]["silent_s"])

        eventually(lambda: silence() > 1.0, 15, "the proxy sees that no byte comes")
    assert pdctl.instance("consumer-0")["running"] == 0


def test_logs_show_all_instances_filtered_and_followed(pdctl: Pdctl) -> None:
    pdctl.ok("up", str(pdctl.topology()))
    everything = pdctl.ok("logs").out
    assert "producer-0 | " in everything
    assert "proxy      | " in everything
    assert "Application startup complete" in everything
    one = pdctl.ok("logs", "p0", "--no-prefix", "--grep", "startup complete").out.splitlines()
    assert len(one) == 1
    assert pdctl.ok("logs", "d0", "-n", "2").out.count("consumer-0 | ") == 2
    assert pdctl("logs", "nothing-*").code == 2
    follower = pdctl.popen("logs", "-f", "-n", "0")
    url = pdctl.status()["url"]
    assert follower.stdout is not None
    time.sleep(0.5)
    complete(url)
    try:
        line = follower.stdout.readline() if _speaks_within(follower, 5) else ""
    finally:
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=10)
    assert follower.returncode in (0, 130)
    assert " | " in line


def _speaks_within(process: Any, timeout_s: float) -> bool:
    import select

    return bool(select.select([process.stdout], [], [], timeout_s)[0])


def test_no_secret_reaches_a_file_or_a_process_list(pdctl: Pdctl) -> None:
    secret = "s3cret-api-key"
    pdctl.env["PDCTL_API_KEY"] = secret
    file = pdctl.topology(proxy={"api_key_env": "PDCTL_API_KEY"})
    up = pdctl.ok("up", str(file), "--json")
    assert up.json["verify"]["ok"] is True
    assert secret not in up.out + up.err
    for path in pdctl.home.rglob("*"):
        if path.is_file() and secret in path.read_text(errors="replace"):
            assert path.name == "env"
            assert path.stat().st_mode & 0o077 == 0
    assert not any(secret in command for command in processes_of(pdctl.home).values())
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(up.json["url"])
    assert refused.value.code == 401
    refused.value.close()


def test_purge_forgets_the_cluster(pdctl: Pdctl) -> None:
    file = pdctl.topology(layout="0P0D", connector=None, aggregated={"replicas": 1})
    pdctl.ok("up", str(file))
    pdctl.ok("down", "--purge")
    assert not (pdctl.home / "test").exists()
    assert pdctl.status()["state"] == "stopped", "./topology.yaml still says what could run"
    assert not (pdctl.home / "test").exists(), "looking leaves nothing"
    file.unlink()
    assert pdctl("status").code == 2
    assert pdctl.ok("ls", "--json").json["clusters"] == []


def test_a_topology_from_standard_input(pdctl: Pdctl) -> None:
    file = pdctl.topology()
    process = pdctl.popen("plan", "-", "--format", "json", stdin=-1)
    out, err = process.communicate(file.read_text(), timeout=20)
    assert process.returncode == 0, err
    assert json.loads(out)["cluster"] == yaml.safe_load(file.read_text())["name"]


def _environ(pid: int) -> dict[str, str]:
    try:
        parts = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in parts if "=" in part)


def _instance_of(pid: int) -> str:
    return _environ(pid).get("PDCTL_INSTANCE", "")
