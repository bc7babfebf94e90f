"""Write pdctl/vllm/releases.json from published wheels: `python -m tools.vllm_facts` adds the releases that it lacks.

`--all` reads every release again; releases named as arguments are read (again) alone. Only .py files are read, by ranges,
and nothing of vLLM is imported. The change to the file is the review: one line an entry.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

from tools.vllm_facts.flags import read_flags
from tools.vllm_facts.sources import Sources
from tools.vllm_facts.spans import Release, dump, from_spans, to_spans, version_key
from tools.vllm_facts.tables import (
    read_config_fields,
    read_connectors,
    read_environment,
    read_messages,
    read_metrics,
    read_nixl_version,
)
from tools.vllm_facts.wheels import RangeFile, wheel_url

FILE = Path(__file__).parents[2] / "pdctl/vllm/releases.json"
FIRST = (0, 9, 2)
_AT_ONCE = 3


def read_release(sources: Sources) -> Release:
    """Return everything that is read of one release."""
    fields, forbids = read_config_fields(sources)
    general = {"kv_config_forbids_unknown_fields": {"value": forbids}}
    nixl = read_nixl_version(sources)
    if nixl is not None:
        general["nixl_connector_version"] = {"value": nixl}
    return {
        "general": general,
        "connectors": read_connectors(sources),
        "kv_config": fields,
        "flags": read_flags(sources),
        "env": read_environment(sources),
        "metrics": read_metrics(sources),
        "messages": read_messages(sources),
    }


def published() -> list[str]:
    """Return the releases that pip's index has, from 0.9.2 on, oldest first."""
    pip = [sys.executable, "-m", "pip", "index", "versions", "vllm"]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=120, check=True)
    listed = re.search(r"Available versions: (.*)", done.stdout)
    if listed is None:
        raise RuntimeError(f"pip lists no versions of vllm: {done.stdout}{done.stderr}")
    plain = [one for one in listed[1].split(", ") if re.fullmatch(r"\d+(\.\d+)+", one)]
    return sorted((one for one in plain if version_key(one) >= FIRST), key=version_key)


def _read(release: str, unpacked: Path | None) -> Release:
    if unpacked is not None:
        return read_release(Sources(unpacked / release))
    with ZipFile(io.BufferedReader(RangeFile(wheel_url(f"vllm=={release}")), buffer_size=256 * 1024)) as archive:
        return read_release(Sources(archive))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="*", help="such as 0.34.0; default: those that the file lacks")
    parser.add_argument("--all", action="store_true", help="read every published release again")
    parser.add_argument("--unpacked", type=Path, help="folder with RELEASE/vllm/... instead of the index")
    given = parser.parse_args()
    known = from_spans(json.loads(FILE.read_text())) if FILE.exists() else {}
    if given.release:
        wanted = given.release
    else:
        there = (
            sorted((one.name for one in given.unpacked.iterdir()), key=version_key) if given.unpacked else published()
        )
        wanted = there if given.all else [one for one in there if one not in known]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for release, facts in zip(wanted, pool.map(lambda one: _read(one, given.unpacked), wanted), strict=True):
            known[release] = facts
            print(f"{release}: {', '.join(f'{len(facts[table])} {table}' for table in facts)}", flush=True)
            FILE.write_text(dump(to_spans(known)))
    print(f"{FILE}: {len(known)} releases, {FILE.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
