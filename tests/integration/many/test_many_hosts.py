"""One cluster over several hosts, as its operator has it."""

from __future__ import annotations

import json
import shutil
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.beds import Many
from tests.conftest import eventually

FOUR = ("h0", "h1", "h2", "h3")


def states(many: Many) -> dict[str, str]:
    return {one["name"]: one["state"] for one in many.pdctl.status()["instances"]}


def serving(many: Many, host: str) -> list[str]:
    """Return the engines on a host."""
    return [row for row in many.processes(host).get(host, []) if "'pdctl.sim'" in row and "shim-" not in row]


def test_2p2d_on_four_hosts_comes_up_serves_verifies_and_goes_down(many: Many) -> None:
    file = many.topology(*FOUR, proxy={"bind": "0.0.0.0"})
    up = many.pdctl.ok("up", str(file), "--json").json
    assert up["verify"]["ok"] is True, up["headline"]
    assert {(pair["producer"], pair["consumer"]) for pair in up["verify"]["pairs"]} == {
        ("producer-0", "consumer-0"),
        ("producer-1", "consumer-1"),
    }
    status = many.pdctl.status()
    assert status["state"] == "ready"
    assert {one["host"] for one in status["instances"]} == set(FOUR)
    assert many.pdctl.ok("up", str(file), "--json").json["changes"] == [], "a second up has nothing to do"
    logs = many.pdctl.ok("logs", "-n", "1000").out
    for name in ("producer-0", "producer-1", "consumer-0", "consumer-1", "proxy"):
        assert f"{name}" in logs
    down = many.pdctl.ok("down", "--json").json
    assert down["clean"] is True
    many.nothing_left()


def test_hosts_that_share_a_home_do_not_mix(many: Many) -> None:
    """Homes on NFS: every host sees every other's files, and no process of theirs."""
    shared = many.bed.shared / "home with blank é"
    file = many.topology(*FOUR[:2], layout="1P1D", hosts=many.hosts("h0", "h1", workdir=str(shared)))
    up = many.pdctl.ok("up", str(file), "--json").json
    assert up["verify"]["ok"] is True
    assert set(states(many).values()) == {"ready"}
    assert many.pdctl.ok("down", "--json").json["clean"] is True
    many.nothing_left()


def test_status_knows_when_our_own_state_is_gone(many: Many, tmp_path: Path) -> None:
    """The truth lives on the hosts: another machine with the same file sees it."""
    file = many.topology(*FOUR[:2], layout="1P1D")
    many.pdctl.ok("up", str(file))
    shutil.rmtree(many.pdctl.home)
    assert set(states(many).values()) == {"ready"}, "./topology.yaml says where to look"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    many.pdctl.cwd = elsewhere
    status = many.pdctl.ok("status", "-c", str(file), "--json").json
    assert status["state"] == "ready"
    assert many.pdctl.ok("down", "-c", str(file), "--json").json["clean"] is True
    many.nothing_left()


def test_a_host_that_is_away_is_unreachable_and_hides_no_other(many: Many) -> None:
    file = many.topology(*FOUR)
    many.pdctl.ok("up", str(file))
    many.bed.cut("h3")
    began = time.monotonic()
    done = many.pdctl("status", "--json", timeout_s=60)
    assert time.monotonic() - began < 25
    assert done.code == 3
    found = {one["host"]: one["state"] for one in done.json["instances"]}
    assert found["h3"] == "unreachable"
    assert found["h1"] == found["h2"] == "ready"
    down = many.pdctl("down", "--json", timeout_s=120)
    assert down.code == 1, down.out
    assert "h3" in down.out + down.err
    assert not many.processes("h0", "h1", "h2")
    many.bed.heal("h3")
    assert many.pdctl.ok("down", "--json", timeout_s=120).json["clean"] is True
    many.nothing_left()


def test_a_host_that_is_away_stops_up_before_anything_starts(many: Many) -> None:
    file = many.topology(*FOUR)
    many.bed.cut("h2")
    up = many.pdctl("up", str(file), "--json", timeout_s=60)
    assert up.code == 4, up.out
    (finding,) = up.json["error"]["findings"]
    assert (finding["host"], finding["check"]) == ("h2", "reach")
    assert finding["fix"]
    many.nothing_left()


def test_a_host_without_python_is_named(many: Many) -> None:
    hosts = many.hosts("h0", "bare")
    hosts[1].pop("python")
    up = many.pdctl("up", str(many.topology(layout="1P1D", hosts=hosts)), "--json")
    assert up.code in (1, 4)
    assert "bare" in up.out
    assert "python3" in up.out
    many.nothing_left()


def test_a_full_disk_is_named(many: Many) -> None:
    up = many.pdctl("up", str(many.topology("h0", "tiny", layout="1P1D")), "--json")
    assert up.code == 4
    (finding,) = up.json["error"]["findings"]
    assert (finding["host"], finding["check"]) == ("tiny", "disk")
    many.nothing_left()


def test_two_operators_at_once(many: Many) -> None:
    """One lock on every host: the second is told who holds it."""
    file = many.topology(*FOUR[:2], layout="1P1D", engine={"args": {"sim-startup": 4}})
    first = many.pdctl.popen("up", str(file), "--no-verify")
    eventually(lambda: many.processes("h1"), 15, "the first one has begun")
    second = many.pdctl("up", str(file), "--json")
    assert second.code == 1
    assert "pdctl up" in second.out
    assert first.wait(60) == 0
    first.communicate()
    assert set(states(many).values()) == {"ready"}


def test_a_hang_up_leaves_the_instances(many: Many) -> None:
    """Case 9: the operator's line goes; the engines stay."""
    file = many.topology(*FOUR[:2], layout="1P1D")
    many.pdctl.ok("up", str(file))
    for host in FOUR[:2]:
        many.bed.stop_sshd(host, sessions=True)
    time.sleep(1)
    for host in FOUR[:2]:
        many.bed.start_sshd(host)
    assert set(states(many).values()) == {"ready"}
    assert many.pdctl.ok("verify", "--json").json["ok"] is True


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.3, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0])
def test_up_killed_at_any_point_leaves_what_down_takes_away(many: Many, after_s: float) -> None:
    file = many.topology(*FOUR[:2], layout="1P1D", engine={"args": {"sim-startup": 1}})
    up = many.pdctl.popen("up", str(file))
    time.sleep(after_s)
    up.send_signal(signal.SIGKILL)
    up.communicate()
    down = many.pdctl("down", "-c", str(file), "--json", timeout_s=90)
    assert down.code in (0, 2), down.out + down.err
    many.nothing_left()


def test_a_killed_up_is_finished_by_the_next(many: Many) -> None:
    """Case 9: the next `up` adopts what runs and starts no second copy."""
    file = many.topology(*FOUR[:2], layout="1P1D", engine={"args": {"sim-startup": 2}})
    up = many.pdctl.popen("up", str(file))
    eventually(lambda: len(many.processes("h0", "h1")) == 2, 15, "both hosts have begun")
    up.send_signal(signal.SIGKILL)
    up.communicate()
    outcome = many.pdctl.ok("up", str(file), "--json").json
    assert outcome["verify"]["ok"] is True
    for host in FOUR[:2]:
        assert len(serving(many, host)) == 1


def test_the_line_breaks_during_up(many: Many) -> None:
    """A cut of some seconds costs those seconds only."""
    file = many.topology(*FOUR[:2], layout="1P1D", engine={"args": {"sim-startup": 6}})
    up = many.pdctl.popen("up", str(file), "--json")
    eventually(lambda: serving(many, "h1"), 15, "it has begun")
    many.bed.stop_sshd("h1", sessions=True)
    time.sleep(1)
    many.bed.start_sshd("h1")
    out, err = up.communicate(timeout=90)
    assert up.returncode == 0, out + err
    assert json.loads(out)["verify"]["ok"] is True


def test_a_rebooted_host_tells_the_truth(many: Many) -> None:
    file = many.topology(*FOUR[:2], layout="1P1D", restart={"policy": "never"})
    many.pdctl.ok("up", str(file))
    many.bed.poweroff("h1")
    many.bed.boot("h1")
    found = {one["host"]: one for one in many.pdctl.status()["instances"] if one["role"] != "proxy"}
    assert found["h0"]["state"] == "ready"
    assert found["h1"]["state"] in ("stopped", "failed")
    assert "restarted" in str(found["h1"]["reason"])
    many.pdctl.ok("down")
    many.nothing_left()


def test_logs_of_many_hosts_are_one_stream_by_time(many: Many) -> None:
    file = many.topology(*FOUR)
    many.pdctl.ok("up", str(file))
    lines = many.pdctl.ok("logs", "-t", "--tail", "50").out.splitlines()
    stamps = [line.split("| ", 1)[1].split(" ", 1)[0] for line in lines if "| " in line]
    assert len(stamps) > 20
    assert stamps == sorted(stamps)


def ask(url: str) -> None:
    body = json.dumps({"model": "tiny", "prompt": "one two three", "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def test_followed_logs_survive_a_broken_connection(many: Many) -> None:
    """No line is lost and none comes twice."""
    file = many.topology(*FOUR[:2], layout="1P1D", proxy={"bind": "0.0.0.0"})
    up = many.pdctl.ok("up", str(file), "--json").json
    url = f"http://{many.bed.address('h0')}:{up['url'].rsplit(':', 1)[1]}"
    follow = many.pdctl.popen("logs", "-f", "-t")
    for number in range(24):
        ask(url)
        time.sleep(0.1)
        if number == 8:
            many.bed.stop_sshd("h1", sessions=True)
        if number == 12:
            many.bed.start_sshd("h1")
    time.sleep(4)
    follow.send_signal(signal.SIGINT)
    followed = follow.communicate(timeout=20)[0].splitlines()
    whole = many.pdctl.ok("logs", "-t").out.splitlines()
    assert sum("POST /v1/completions" in line for line in whole) >= 48
    assert sorted(followed) == sorted(whole)


@pytest.mark.slow
def test_a_host_that_is_cut_off_for_good_ends_up_and_the_rest_is_stopped(many: Many) -> None:
    file = many.topology(*FOUR[:2], layout="1P1D", engine={"args": {"sim-startup": 120}})
    up = many.pdctl.popen("up", str(file), "--json")
    eventually(lambda: serving(many, "h1"), 15, "it has begun")
    many.bed.cut("h1")
    out, err = up.communicate(timeout=150)
    assert up.returncode == 1, out + err
    assert "h1" in out
    many.nothing_left("h0")
    many.bed.heal("h1")
    assert many.pdctl.ok("down", "--json", timeout_s=90).json["clean"] is True
    many.nothing_left()


def test_a_killed_shim_there_leaves_an_instance_that_down_finds(many: Many) -> None:
    file = many.topology(*FOUR[:2], layout="1P1D")
    many.pdctl.ok("up", str(file))
    many.bed.exec("h1", ["sh", "-c", "pkill -9 -f 'shim-.* start'"], user="root", check=False)
    assert many.pdctl.ok("down", "--json").json["clean"] is True
    many.nothing_left()


def test_a_host_that_is_cut_off_during_down(many: Many) -> None:
    """Whatever that `down` managed, the next one finishes it."""
    file = many.topology(*FOUR[:2], layout="1P1D")
    many.pdctl.ok("up", str(file))
    down = many.pdctl.popen("down", "--json")
    time.sleep(0.5)
    many.bed.cut("h1")
    out, err = down.communicate(timeout=120)
    assert down.returncode in (0, 1), out + err
    assert down.returncode == 0 or "h1" in out
    many.bed.heal("h1")
    assert many.pdctl.ok("down", "--json", timeout_s=120).json["clean"] is True
    many.nothing_left()


def test_a_port_that_is_taken_between_check_and_launch(many: Many) -> None:
    file = many.topology(*FOUR[:2], layout="1P1D", engine={"args": {"sim-startup": 4}}, restart={"policy": "never"})
    plan = many.pdctl.ok("plan", str(file), "--format", "json").json
    one = next(one for one in plan["instances"] if one["host"] == "h1")
    script = f"import socket,sys; s=socket.create_server(('{many.bed.address('h1')}', {one['ports']['http']})); print('on', flush=True); sys.stdin.read()"
    up = many.pdctl.popen("up", str(file), "--json")
    eventually(lambda: serving(many, "h1"), 15, "the engine is on its way to its port")
    holder = many.bed.popen("h1", ["python3", "-c", script], stdin=-1, stdout=-1)
    try:
        assert holder.stdout.readline() == b"on\n"
        out, err = up.communicate(timeout=60)
        assert up.returncode == 1, out + err
        error = json.loads(out)["error"]
        assert (error["instance"], error["cause"]) == (one["name"], "the port is taken by another process")
        assert error["fix"]
    finally:
        holder.communicate()
    many.nothing_left()
