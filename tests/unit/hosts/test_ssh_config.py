"""Where an ssh server is: the file's `ssh:` over the user's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.errors import TransportError
from pdctl.hosts.ssh_config import resolve_target


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def write(home: Path, text: str) -> None:
    (home / ".ssh" / "config").write_text(text)


def test_without_a_configuration_the_name_is_the_host(home: Path) -> None:
    target = resolve_target("a", {"host": "a.example", "user": "me"}, home)
    assert (target.hostname, target.port, target.user, target.jumps) == ("a.example", 22, "me", ())
    assert target.key_name == "a.example"


def test_the_file_wins_over_the_configuration(home: Path) -> None:
    write(home, "Host a\n  HostName 10.0.0.1\n  User them\n  Port 2222\n  IdentityFile /keys/one\n")
    target = resolve_target("a", {"host": "a"}, home)
    assert (target.text, target.identity_files) == ("them@10.0.0.1:2222", ("/keys/one",))
    assert target.key_name == "[10.0.0.1]:2222"
    target = resolve_target("a", {"host": "a", "user": "me", "port": 22, "identity_file": "/keys/two"}, home)
    assert (target.text, target.identity_files) == ("me@10.0.0.1:22", ("/keys/two",))


def test_a_chain_of_jump_hosts_is_the_nearest_first(home: Path) -> None:
    write(
        home,
        "Host *\n  User me\nHost far\n  ProxyJump near,mid:2200\nHost near\n  ProxyJump door\nHost mid\n  ProxyJump ignored\n",
    )
    target = resolve_target("far", {"host": "far"}, home)
    assert [one.text for one in target.jumps] == ["me@door:22", "me@near:22", "me@mid:2200"]


def test_jump_of_the_file_replaces_the_configurations(home: Path) -> None:
    write(home, "Host a\n  ProxyJump x\n  ProxyCommand nc %h %p\n")
    target = resolve_target("a", {"host": "a", "jump": "them@b:2200"}, home)
    assert [one.text for one in target.jumps] == ["them@b:2200"]
    assert target.proxy_command == ""


@pytest.mark.parametrize(
    ("hop", "text"), [("[fd00::1]:2200", "[fd00::1]:2200"), ("u@[fd00::1]", "[fd00::1]:22"), ("ssh://u@h:7", "h:7")]
)
def test_hops_in_every_spelling(home: Path, hop: str, text: str) -> None:
    (jump,) = resolve_target("a", {"host": "a", "user": "u", "jump": hop}, home).jumps
    assert jump.text.rsplit("@", 1)[1] == text


def test_an_include_stands_in_its_block(home: Path) -> None:
    (home / ".ssh" / "more").write_text("Host b\n  User bee\n")
    write(home, "Host a\n  Include more\n  User ay\n")
    assert resolve_target("a", {"host": "a"}, home).user == "ay"
    assert resolve_target("b", {"host": "b"}, home).user == "bee"


def test_includes_that_include_themselves_end(home: Path) -> None:
    write(home, "Include config\nHost a\n  User me\n")
    assert resolve_target("a", {"host": "a"}, home).user == "me"


def test_circles_are_an_error(home: Path) -> None:
    write(home, "Host a\n  ProxyJump a\n")
    with pytest.raises(TransportError, match="circle: a -> a"):
        resolve_target("a", {"host": "a"}, home)


def test_nonsense_is_no_jump_host(home: Path) -> None:
    with pytest.raises(TransportError, match="no host to jump through"):
        resolve_target("a", {"host": "a", "jump": "x,,y"}, home)


@pytest.mark.parametrize(("word", "accepts"), [("yes", False), ("ask", False), ("accept-new", True), ("no", True)])
def test_the_user_may_have_decided_about_new_keys(home: Path, word: str, accepts: bool) -> None:
    write(home, f"StrictHostKeyChecking {word}\n")
    assert resolve_target("a", {"host": "a"}, home).accepts_new_keys is accepts
