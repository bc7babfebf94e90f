"""The one place that quotes for a remote shell."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.hosts.remote_command import exit_code_of, remote_command

WORDS = st.lists(
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=30), min_size=1, max_size=6
)


@given(WORDS)
@settings(max_examples=60, deadline=None)
def test_every_argument_arrives_as_it_is(words: list[str]) -> None:
    command = remote_command(["/usr/bin/printf", r"%s\0", *words])
    done = subprocess.run(["/bin/sh", "-c", command.line], capture_output=True, check=True)
    begun = command.begin(done.stdout)
    assert begun is not None
    assert begun[1] == b"".join(os.fsencode(word) + b"\0" for word in words)


@given(WORDS)
def test_the_line_holds_nothing_that_a_shell_could_read(words: list[str]) -> None:
    line = remote_command(words).line
    assert line.isascii()
    assert "\n" not in line
    assert line.count("'") == 4, "a script and an argument, each in quotes"
    assert "!" not in line, "csh would look into its history"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_noise_before_the_mark_is_no_output(noise: bytes, output: bytes) -> None:
    command = remote_command(["x"])
    assert command.begin(noise) is None
    assert command.begin(noise + b"\n" + command.mark + b" 123\n" + output) == (123, output)
    assert command.strip_errors(noise + command.mark + b"\n" + output) == output


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (1, 1), (128, 128), (137, -9), (143, -15), (192, -64), (193, 193), (255, 255)]
)
def test_the_end_by_a_signal_is_negative(status: int, code: int) -> None:
    assert exit_code_of(status) == code
