"""Logging in: what people's ssh set-ups look like, and what is said when it doesn't work."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Testbed

from pdctl.errors import TransportError
from pdctl.hosts.ssh import SshTransport
from pdctl.hosts.ssh_connection import Login
from tests.conftest import eventually

STRANGE = "$HOME; `id` 'x' \"y\" \\ !! %s \n\t* ~ # é ☃ {a,b} -n"
Reaches = Callable[..., SshTransport]


@pytest.fixture
def reach(ssh_home: Path) -> Iterator[Reaches]:
    made: list[tuple[SshTransport, Login]] = []

    def make(host: str, login: Login | None = None, **ssh: Any) -> SshTransport:
        login = login or Login()
        made.append((SshTransport(host, {"host": host, **ssh}, login, home=ssh_home), login))
        return made[-1][0]

    yield make
    for transport, login in made:
        transport.close()
        login.close()


@pytest.mark.parametrize("host", ["h0", "h1", "h2", "h3", "csh", "inner", "v6", "narrow"])
def test_every_kind_of_login_hands_arguments_on_unread(bed: Testbed, reach: Reaches, host: str) -> None:
    transport = reach(host)
    done = transport.run(
        ["/bin/sh", "-c", 'printf "%s|" "$@"; cat; echo bad >&2; exit 7', "sh", STRANGE, ""], stdin=b"in\0\xff"
    )
    assert done.stdout == STRANGE.encode() + b"||in\0\xff"
    assert (done.exit_code, done.stderr) == (7, b"bad\n")
    where = transport.run(["/bin/sh", "-c", "pwd; echo $HOME"]).stdout.split()
    assert where[0] == where[1], "commands start at home"
    transport.put("~/näme with blank/a'b", b"\0" * 100_000, mode=0o640)
    shown = transport.run(["/usr/bin/stat", "-c", "%a %s", "näme with blank/a'b"]).stdout
    assert shown == b"640 100000\n"


def logins(bed: Testbed, host: str) -> int:
    return bed.sshd_log(host).read_text().count("Accepted publickey")


def test_one_connection_carries_all_commands(bed: Testbed, reach: Reaches) -> None:
    before = logins(bed, "h0")
    transport = reach("h0")
    stream = transport.stream(["/bin/cat"], first_input=b"on\n")
    assert next(stream.lines()) == b"on"
    for _ in range(3):
        transport.run(["/bin/true"])
    assert logins(bed, "h0") == before + 1
    stream.close()


def test_a_server_with_one_session_gets_more_connections(bed: Testbed, reach: Reaches) -> None:
    transport = reach("narrow")
    stream = transport.stream(["/bin/cat"], first_input=b"on\n")
    assert next(stream.lines()) == b"on"
    assert transport.run(["/bin/echo", "too"]).stdout == b"too\n"
    stream.close()


def test_hosts_behind_a_jump_host_share_its_connection(bed: Testbed, reach: Reaches) -> None:
    before = logins(bed, "h0")
    login = Login()
    first, second = reach("inner", login), reach("inner", login)
    assert first.run(["/bin/hostname"]).stdout == second.run(["/bin/hostname"]).stdout == b"inner\n"
    assert logins(bed, "h0") == before + 1


def refused(transport: SshTransport) -> TransportError:
    with pytest.raises(TransportError) as error:
        transport.run(["/bin/true"])
    assert error.value.host == transport.host
    assert error.value.fix, "the way out is named"
    return error.value


def test_an_unknown_host_key_is_refused_until_it_is_accepted(bed: Testbed, reach: Reaches, ssh_home: Path) -> None:
    error = refused(reach("unknown"))
    assert "host key" in error.what
    assert "unknown" in error.what
    assert "SHA256:" in error.what
    assert "--accept-new-host-keys" in error.fix
    config = ssh_home / ".ssh" / "config"
    own = ssh_home / "known"
    own.write_text(bed.known_hosts.read_text())
    config.write_text(config.read_text().replace(str(bed.known_hosts), str(own)))
    assert reach("unknown", Login(accept_new_host_keys=True)).run(["/bin/true"]).exit_code == 0
    assert reach("unknown").run(["/bin/true"]).exit_code == 0, "the key is noted"


def test_a_changed_host_key_is_refused_even_where_new_ones_are_accepted(bed: Testbed, reach: Reaches) -> None:
    for login in (Login(), Login(accept_new_host_keys=True)):
        error = refused(reach("wrong", login))
        assert "has changed" in error.what
        assert "ssh-keygen -R" in error.fix


def test_a_key_that_the_host_refuses(bed: Testbed, reach: Reaches) -> None:
    error = refused(reach("h0", identity_file=str(bed.info()["key_unauthorized"])))
    assert "refused the login with key_unauthorized" in error.what


def test_an_encrypted_key_is_asked_for_once(bed: Testbed, reach: Reaches) -> None:
    key = str(bed.info()["key_encrypted"])
    assert "is encrypted" in refused(reach("h0", identity_file=key)).what
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return "testbed"

    login = Login(ask=ask)
    for _ in range(2):
        assert reach("h0", login, identity_file=key).run(["/bin/true"]).exit_code == 0
    assert len(asked) == 1
    assert "Passphrase" in asked[0]
    wrong = refused(reach("h0", Login(ask=lambda _: "no"), identity_file=key))
    assert "encrypted" in wrong.what or "refused" in wrong.what


def test_nobody_listens(bed: Testbed, reach: Reaches) -> None:
    assert "Connection refused" in refused(reach("h0", port=1)).what


def test_a_name_that_nobody_knows(bed: Testbed, reach: Reaches) -> None:
    assert "no-such-host.invalid" in refused(reach("no-such-host.invalid")).what


def test_something_that_is_no_ssh_server(bed: Testbed, reach: Reaches) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        error = refused(reach("127.0.0.1", port=server.getsockname()[1]))
    assert "hung up before it said what it is" in error.what


def test_a_host_that_is_cut_off_is_given_up_in_time(bed: Testbed, reach: Reaches, ssh_home: Path) -> None:
    config = ssh_home / ".ssh" / "config"
    config.write_text("ConnectTimeout 2\n" + config.read_text())
    bed.cut("h1")
    began = time.monotonic()
    assert "does not answer within 2 s" in refused(reach("h1")).what
    assert time.monotonic() - began < 6


def test_a_command_on_a_line_that_goes_dead_ends_with_its_time_limit(bed: Testbed, reach: Reaches) -> None:
    transport = reach("h1")
    transport.run(["/bin/true"])
    bed.cut("h1")
    began = time.monotonic()
    with pytest.raises(TransportError):
        transport.run(["/bin/sleep", "60"], timeout_s=2)
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_stream_on_a_line_that_goes_dead_ends(bed: Testbed, reach: Reaches) -> None:
    transport = reach("h1")
    stream = transport.stream(["/bin/sh", "-c", "echo on; cat"])
    lines = stream.lines()
    assert next(lines) == b"on"
    bed.cut("h1")
    began = time.monotonic()
    with pytest.raises(TransportError, match="connection was lost"):
        next(lines)
    assert time.monotonic() - began < 30
    stream.close()


def test_a_broken_connection_is_opened_again(bed: Testbed, reach: Reaches) -> None:
    transport = reach("h0")
    transport.run(["/bin/true"])
    bed.stop_sshd("h0", sessions=True)
    eventually(lambda: not transport.connected, 10, "the server's end is noticed")
    assert "refused" in refused(transport).what
    bed.start_sshd("h0")
    assert transport.run(["/bin/echo", "again"]).stdout == b"again\n"


def test_a_full_disk_is_said_with_the_path(bed: Testbed, reach: Reaches) -> None:
    transport = reach("tiny")
    with pytest.raises(TransportError, match=r"cannot write .*big: No space left on device"):
        transport.put("~/big", b"x" * 2_000_000)
    assert transport.run(["/bin/ls", "-A", "."]).stdout.find(b"big") < 0, "no half file is left"


def test_includes_and_defaults_of_the_ssh_configuration(bed: Testbed, reach: Reaches, ssh_home: Path) -> None:
    folder = ssh_home / ".ssh"
    shutil.move(folder / "config", folder / "testbed.conf")
    (folder / "config").write_text("Host first\n  Include testbed.conf\n\nHost other\n  HostName nowhere.invalid\n")
    (folder / "testbed.conf").write_text((folder / "testbed.conf").read_text())
    (folder / "config").write_text("Include *.conf\nHost other\n  User nobody\n")
    assert reach("h0").run(["/bin/hostname"]).stdout == b"h0\n"


def test_jump_hosts_that_go_in_a_circle(bed: Testbed, reach: Reaches, ssh_home: Path) -> None:
    (ssh_home / ".ssh" / "config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    assert "circle: a -> b -> a" in refused(reach("a")).what


def test_a_proxy_command(bed: Testbed, reach: Reaches, ssh_home: Path) -> None:
    config = ssh_home / ".ssh" / "config"
    address = bed.address("h2")
    script = "import os,socket,sys,threading;s=socket.create_connection((sys.argv[1],22));threading.Thread(target=lambda:[s.sendall(d) for d in iter(lambda:os.read(0,65536),b'')],daemon=True).start();[os.write(1,d) for d in iter(lambda:s.recv(65536),b'')]"
    (ssh_home / "relay.py").write_text(script)
    config.write_text(f"Host h2\n  ProxyCommand python3 {ssh_home}/relay.py {address}\n{config.read_text()}")
    assert reach("h2").run(["/bin/hostname"]).stdout == b"h2\n"


def test_dialling_from_the_host(bed: Testbed, reach: Reaches) -> None:
    transport = reach("inner")
    channel = transport.dial("127.0.0.1", 22, 5)
    assert channel.recv(4) == b"SSH-"
    channel.close()
    with pytest.raises(ConnectionRefusedError):
        transport.dial("127.0.0.1", 1, 5)
