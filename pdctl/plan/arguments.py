"""Free engine arguments that cannot stand: flags that pdctl sets itself, and those that would lose a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdctl.vllm.flags import normal_flag, owned_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.errors import Problem
    from pdctl.topology.source import SourceMap


def argument_problems(sections: Mapping[str, Mapping[str, Any]], source: SourceMap) -> list[Problem]:
    """Return a problem for each argument that pdctl owns, that hides its value in the key, or that is written twice.

    `sections`: args by the key that holds them, such as `engine` or `decode`.
    """
    problems = []
    for section, args in sections.items():
        first: dict[str, str] = {}
        for written in args:
            path = (section, "args", written)
            flag = normal_flag(written)
            instead = owned_by(written)
            key, equals, value = written.partition("=")
            if instead:
                what, fix = f"pdctl sets `--{written.lstrip('-')}` itself", f"remove it; {instead}"
                problems.append(source.problem(path, what, fix))
            elif equals:
                what = "the value stands in the key, where it would be lost"
                problems.append(source.problem(path, what, f"write `{key.lstrip('-')}: {value}`"))
            elif flag in first:
                what = f"`{written}` and `{first[flag]}` are the same flag"
                problems.append(source.problem(path, what, "keep one of them"))
            first.setdefault(flag, written)
    return problems
