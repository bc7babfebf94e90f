"""pdctl version."""

from __future__ import annotations

import platform

from pdctl import __version__
from pdctl.cli.options import JsonOption
from pdctl.cli.result import Result


def command(json: JsonOption = False) -> Result:  # noqa: ARG001 - the renderer reads it
    """Show the versions of pdctl, Python and the newest vLLM that pdctl knows."""
    from pdctl.vllm.releases import newest_known
    from pdctl.vllm.version import format_version

    versions = {
        "pdctl": __version__,
        "python": platform.python_version(),
        "newest_vllm_known": format_version(newest_known()),
    }
    return Result({"schema": 1, **versions}, view="version")
