"""Single files of a remote wheel, as tests/e2e/test_real_parser.py reads them."""

from __future__ import annotations

import io
import re
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

from tools.vllm_facts.wheels import RangeFile, read_from_wheel

SOURCE = b"answer = 42\n" * 100


class Index(ThreadingHTTPServer):
    """Serves one archive; counts the bytes that it sent."""

    archive = b""
    knows_ranges = True
    sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/big.whl"


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        data, status = self.server.archive, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and self.server.knows_ranges:
            status, data = 206, data[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(self.server.archive)}")  # type: ignore[index]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.server.sent += len(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def index() -> Iterator[Index]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("big.so", Random(0).randbytes(4_000_000))
        archive.writestr("pkg/small.py", SOURCE)
        archive.writestr("other.so", Random(1).randbytes(4_000_000))
    server = Index(("127.0.0.1", 0), Handler)
    server.archive = packed.getvalue()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_one_file_is_read_without_the_rest(index: Index) -> None:
    assert read_from_wheel(index.url, "pkg/small.py") == {"pkg/small.py": SOURCE}
    assert 0 < index.sent < 2_000_000 < len(index.archive)


def test_all_sources_below_a_folder(index: Index) -> None:
    assert read_from_wheel(index.url, "pkg/") == {"pkg/small.py": SOURCE}
    assert index.sent < len(index.archive) / 2


def test_a_server_without_ranges_sends_the_whole(index: Index) -> None:
    index.knows_ranges = False
    assert read_from_wheel(index.url, "pkg/small.py") == {"pkg/small.py": SOURCE}


def test_a_file_that_is_not_there(index: Index, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        read_from_wheel(index.url, "pkg/absent.py")
    local = tmp_path / "a b.whl"
    local.write_bytes(index.archive)
    assert read_from_wheel(local.as_uri(), "pkg/small.py") == {"pkg/small.py": SOURCE}


def test_reading_stops_at_the_end(index: Index) -> None:
    file = RangeFile(index.url)
    file.seek(-4, io.SEEK_END)
    assert file.read(100) == index.archive[-4:]
    assert file.read(100) == b""
