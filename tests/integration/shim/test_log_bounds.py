"""What one read of the pipe may hold: line ends that are cut apart, very long lines, nothing but line ends, a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pdctl.shim import LONGEST_LINE, Log, LogQuery, LogReader, tail_start


def lines(folder: Path, place: list[int] | None = None) -> list[bytes]:
    reader = LogReader(str(folder), place)
    try:
        return [line.split(b" ", 1)[1] for line in reader.lines()]
    finally:
        if reader.file is not None:
            reader.file.close()


def test_a_line_end_cut_apart_by_two_reads_is_one(tmp_path: Path) -> None:
    log = Log(str(tmp_path), 10**6, 1)
    for piece in (b"one\r", b"\ntwo\r", b"three\r\n", b"\n"):
        log.feed(piece)
    assert lines(tmp_path) == [b"one", b"two", b"three", b""]


@pytest.mark.parametrize("pieces", [1, 7])
def test_long_lines_are_cut_and_nothing_is_lost(tmp_path: Path, pieces: int) -> None:
    """Neither in one read nor over several; never inside a character."""
    log = Log(str(tmp_path), 10**8, 1)
    text = b"short\n" + "é".encode() * 400_000 + b"\nend\n"
    size = len(text) // pieces + 1
    for at in range(0, len(text), size):
        log.feed(text[at : at + size])
    found = lines(tmp_path)
    assert max(len(line) for line in found) <= LONGEST_LINE
    assert b"".join(found) == text.replace(b"\n", b"")
    if pieces == 1:  # a read may end inside a character; a cut of ours may not
        assert all(set(line.decode()) == {"é"} for line in found[1:-1])


@pytest.mark.parametrize("flood", [b"\n" * 1_000_000, b"x" * 1_000_000, (b"y" * 30 + b"\n") * 30_000])
def test_one_big_read_stays_inside_the_bound(tmp_path: Path, flood: bytes) -> None:
    """A time stamp before each of a million empty lines is 28 times what came."""
    log = Log(str(tmp_path), 50_000, 3)
    log.feed(flood)
    files = sorted(tmp_path.glob("*.log"))
    assert len(files) == 4
    assert max(path.stat().st_size for path in files) <= 50_000


def test_a_disk_that_was_full_leaves_a_note_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(str(tmp_path), 10**6, 1)
    real, budget = os.write, [40]

    def write(fd: int, data: memoryview) -> int:
        count = min(len(data), budget[0])
        if not count:
            raise OSError(errno.ENOSPC, "full")
        budget[0] -= count
        return real(fd, data[:count])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        log.feed(b"a" * 100 + b"\n")
    log.feed(b"after\n")
    torn, note, after = lines(tmp_path)
    assert set(torn) == {ord("a")}
    assert note == f"pdctl: {28 + 101 - 40} bytes of output could not be written".encode()
    assert after == b"after"


def test_a_tail_survives_a_file_that_is_rotated_away_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(str(tmp_path), 4096, 99)
    for n in range(300):
        log.feed(b"line %d\n" % n)
    gone = sorted(tmp_path.glob("*.log"))[0]
    (tmp_path / "99999999.log").symlink_to(gone.with_name("no"))  # listed, and gone when it is opened
    place = tail_start(str(tmp_path), 3, None)
    assert place is not None
    (tmp_path / "99999999.log").unlink()
    assert lines(tmp_path, place) == [b"line 297", b"line 298", b"line 299"]


def test_an_unknown_option_is_said() -> None:
    with pytest.raises(ValueError, match="--nope"):
        LogQuery(["a", "--nope"])
