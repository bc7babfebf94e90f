"""One release's Python files, parsed on demand: modules, classes, and what a name in an annotation stands for."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING
from zipfile import ZipFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Sources:
    """The .py files of one wheel (a zip) or of an unpacked folder."""

    def __init__(self, archive: ZipFile | Path) -> None:
        self._archive = archive
        self._trees: dict[str, ast.Module] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """Paths of all Python files, such as `vllm/envs.py`."""
        if isinstance(self._archive, ZipFile):
            return frozenset(name for name in self._archive.namelist() if name.endswith(".py"))
        return frozenset(str(path.relative_to(self._archive)) for path in self._archive.rglob("*.py"))

    def text(self, path: str) -> str:
        if isinstance(self._archive, ZipFile):
            return self._archive.read(path).decode()
        return (self._archive / path).read_text()

    def tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self.text(path))
        return self._trees[path]

    def under(self, folder: str) -> list[str]:
        return sorted(name for name in self.names if name.startswith(folder))

    def module(self, dotted: str) -> str | None:
        """Return the file of a module."""
        base = dotted.replace(".", "/")
        return next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in self.names), None)

    def class_def(self, path: str, name: str) -> tuple[str, ast.ClassDef] | None:
        """Return (file, class), following imports and assignments such as `NixlConnector = NixlPullConnector`."""
        found = self.definition(path, name)
        if found is None:
            return None
        at, node = found
        if isinstance(node, ast.ClassDef):
            return at, node
        if isinstance(node, ast.Name):
            return self.class_def(at, node.id)
        return None

    def definition(self, path: str, name: str, depth: int = 0) -> tuple[str, ast.AST] | None:
        """Return (file, class or assigned expression) of a module-level name, through imports."""
        if depth > 8:
            return None
        for node in _top_level(self.tree(path)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return path, node
            if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
                return path, node.value
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == name
                and node.value
            ):
                return path, node.value
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    target = self._import_target(path, node) if (alias.asname or alias.name) == name else None
                    found = self.definition(target, alias.name, depth + 1) if target else None
                    if found:
                        return found
        return None

    def _import_target(self, path: str, node: ast.ImportFrom) -> str | None:
        if not node.level:
            return self.module(node.module or "")
        package = path.split("/")[: -node.level]
        return self.module(".".join([*package, *((node.module or "").split(".") if node.module else [])]))


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield a module's statements, those under `if TYPE_CHECKING` and `try` too."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If):
            waiting[:0] = [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            waiting[:0] = node.body
