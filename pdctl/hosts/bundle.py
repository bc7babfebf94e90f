"""pdctl's own source as one file, for hosts that have no pdctl: Python imports from a zip."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
_SUFFIXES = (".py", ".json", ".txt")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@lru_cache(maxsize=1)
def source_bundle() -> tuple[str, bytes]:
    """Return (file name with its content's hash, zip); the same source gives the same bytes everywhere."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                info = zipfile.ZipInfo(f"pdctl/{path.relative_to(_PACKAGE).as_posix()}", _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())
    data = buffer.getvalue()
    return f"pdctl-{hashlib.sha256(data).hexdigest()[:16]}.zip", data
