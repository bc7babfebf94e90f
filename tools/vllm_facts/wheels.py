"""Read single files out of a wheel that lies on an index, without fetching the rest of it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urlsplit


class NoIndex(Exception):
    """pip found no index that has anything of the project; the text is its last line."""


class RangeFile(io.RawIOBase):
    """A file at a URL, read in pieces (RFC 9110, section 14); whole where the server knows no ranges."""

    def __init__(self, url: str) -> None:
        self.requests = 0
        self._url, self._at, self._whole = url, 0, b""
        self._size = self._first_look()

    def _first_look(self) -> int:
        answer = self._ask("bytes=0-0")
        with answer:
            if answer.status == 206:
                return int(answer.headers["Content-Range"].rsplit("/", 1)[1])
            self._whole = answer.read()
            return len(self._whole)

    def _ask(self, span: str) -> urllib.request.addinfourl:
        self.requests += 1
        request = urllib.request.Request(self._url, headers={"Range": span, "Accept-Encoding": "identity"})
        answer: urllib.request.addinfourl = urllib.request.urlopen(request, timeout=60)
        return answer

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        end = min(self._at + len(view), self._size)
        if end <= self._at:
            return 0
        if self._whole:
            data = self._whole[self._at : end]
        else:
            with self._ask(f"bytes={self._at}-{end - 1}") as answer:
                data = answer.read()
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def wheel_url(requirement: str) -> str:
    """Return where pip's own index has the wheel. Raises NoIndex, and RuntimeError if pip fails of something else."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--no-input", "--report", "-"]
    wanted = ["--ignore-requires-python", "--ignore-installed", "--only-binary=:all:"]
    for tag in (*(f"manylinux_2_{minor}" for minor in range(5, 41)), "manylinux1", "manylinux2014"):
        wanted += ["--platform", f"{tag}_x86_64"]
    # pip takes --platform only with --target; nothing is written there.
    done = subprocess.run(
        [*pip, *wanted, "--target", "unused", requirement], check=False, capture_output=True, text=True, timeout=500
    )
    if done.returncode and "from versions: none" in done.stderr:
        raise NoIndex(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise RuntimeError(f"pip cannot name the wheel: {done.stderr}")
    url: str = json.loads(done.stdout)["install"][0]["download_info"]["url"]
    return url


def read_from_wheel(url: str, *names: str) -> dict[str, bytes]:
    """Return the wheel's files of these names, and all .py files below those that end in `/`; KeyError if one is missing."""
    if urlsplit(url).scheme == "file":
        source: Path | io.BufferedReader = Path(urllib.request.url2pathname(urlsplit(url).path))
    else:
        source = io.BufferedReader(RangeFile(url), buffer_size=1024 * 1024)
    with zipfile.ZipFile(source) as archive:
        wanted = [archive.getinfo(name) for name in names if not name.endswith("/")]
        folders = tuple(name for name in names if name.endswith("/"))
        if folders:
            wanted += [
                one for one in archive.infolist() if one.filename.startswith(folders) and one.filename.endswith(".py")
            ]
        # In the order of the archive: neighbours come with one request.
        return {one.filename: archive.read(one) for one in sorted(wanted, key=lambda one: one.header_offset)}
