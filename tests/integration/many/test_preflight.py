"""`pdctl check FILE` and the start of `up`: what is wrong with hosts is said before anything starts."""

from __future__ import annotations

from typing import Any

from tests.beds import Many


def check(many: Many, *names: str, code: int = 4, **keys: Any) -> dict[str, tuple[str, str]]:
    """Return "host check" -> (what, fix) of all findings."""
    done = many.pdctl("check", str(many.topology(*names, **{"layout": "1P1D", **keys})), "--json", timeout_s=90)
    assert done.code == code, done.out + done.err
    many.nothing_left()
    found = {f"{one['host']} {one['check']}": (one["what"], one["fix"]) for one in done.json["findings"]}
    assert all(fix for _, fix in found.values())
    return found


def test_good_hosts(many: Many) -> None:
    done = many.pdctl.ok("check", str(many.topology("h0", "h1", layout="1P1D")), "--json").json
    assert done["findings"] == []
    assert set(done["hosts"]) == {"h0", "h1"}
    assert all(0 < one["latency_ms"] < 5000 for one in done["hosts"].values())
    assert "nothing stands in the way" in many.pdctl.ok("check", str(many.pdctl.cwd / "topology.yaml")).out


def test_a_running_cluster_is_no_finding(many: Many) -> None:
    file = many.topology("h0", "h1", layout="1P1D")
    many.pdctl.ok("up", str(file))
    assert many.pdctl.ok("check", str(file), "--json").json["findings"] == []


def test_an_address_of_another_host(many: Many) -> None:
    hosts = many.hosts("h0", "h1")
    hosts[1]["address"] = many.bed.address("h2")
    what, fix = check(many, hosts=hosts)["h1 address"]
    assert many.bed.address("h2") in what
    assert "not this host's" in what
    assert "`address`" in fix


def test_an_interface_that_is_not_there(many: Many) -> None:
    what, fix = check(many, hosts=many.hosts("h0", "h1", interface="ib7"))["h1 interface"]
    assert "ib7" in what
    assert "eth0" in fix


def test_a_firewall_between_two_hosts(many: Many) -> None:
    """The control plane is fine, and KV would never arrive."""
    many.bed.cut("h1", peers=["h0"])
    found = check(many, "h0", "h1")
    what, fix = found["h0 peers"]
    assert many.bed.address("h1") in what
    assert "no answer" in what
    assert "firewall" in fix
    assert "h1 peers" in found
    up = many.pdctl("up", str(many.pdctl.cwd / "topology.yaml"), "--json", timeout_s=90)
    assert up.code == 4
    assert {one["check"] for one in up.json["error"]["findings"]} == {"peers"}
    many.nothing_left()


def test_a_taken_port_with_its_owner(many: Many) -> None:
    file = many.topology("h0", "h1", layout="1P1D")
    plan = many.pdctl.ok("plan", str(file), "--format", "json").json
    one = next(one for one in plan["instances"] if one["host"] == "h1")
    port = one["ports"]["http"]
    script = f"import socket,sys; s=socket.create_server(('{many.bed.address('h1')}', {port})); print('on', flush=True); sys.stdin.read()"
    holder = many.bed.popen("h1", ["python3", "-c", script], stdin=-1, stdout=-1)
    try:
        assert holder.stdout.readline()
        done = many.pdctl("check", str(file), "--json")
        assert done.code == 4, done.out
        (finding,) = done.json["findings"]
        assert (finding["host"], finding["check"]) == ("h1", "ports")
        assert str(port) in finding["what"]
        assert "pid" in finding["what"]
    finally:
        holder.communicate()  # it ends with its standard input


def test_ports_that_the_kernel_gives_away(many: Many) -> None:
    """On some machines that range starts at 9000: only the host can say."""
    setting = "/proc/sys/net/ipv4/ip_local_port_range"
    before = many.bed.exec("h1", ["cat", setting], user="root").stdout.strip()
    many.bed.exec("h1", ["sh", "-c", f"echo '9000 60999' > {setting}"], user="root")
    try:
        what, fix = check(many, "h0", "h1", code=0)["h1 ports"]
    finally:
        many.bed.exec("h1", ["sh", "-c", f"echo '{before}' > {setting}"], user="root")
    assert "9000-60999" in what
    assert "ip_local_reserved_ports" in fix


def test_a_workdir_that_cannot_be_written(many: Many) -> None:
    what, _ = check(many, hosts=many.hosts("h0", "h1", workdir="/etc/passwd/pdctl"))["h0 workdir"]
    assert "/etc/passwd/pdctl" in what


def test_several_hosts_are_all_named_at_once(many: Many) -> None:
    many.bed.cut("h2")
    many.bed.stop_sshd("h3")
    found = check(many, "h0", "h1", "h2", "h3", layout="2P2D")
    assert set(found) == {"h2 reach", "h3 reach"}
    assert "does not answer" in found["h2 reach"][0]
    assert "refused" in found["h3 reach"][0]
