"""A package whose files are imported when a name of theirs is first used (PEP 562).

The names are those that its `__init__.py` imports under `if TYPE_CHECKING:`. Type checkers read them there, and so does
this module, so that no name is written twice.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


def source(module: str) -> str:
    """The text of one of our modules, which is not imported for it."""
    path = ROOT.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")


def imports(package: str) -> dict[str, str]:
    """The names that a package offers, each with its module."""
    found: dict[str, str] = {}
    for module, name in _imported(package):
        found.update(imports(module) if name == "*" else {name: module})
    return found


def _imported(package: str) -> Iterator[tuple[str, str]]:
    for block in ast.parse(source(package)).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom):
                    yield from ((str(line.module), each.name) for each in line.names)


def door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the package."""
    known = imports(package)

    def find(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = known[name]
        if module == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)  # the next time it is simply there
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *known})

    return find, listed, sorted(known)
