"""What there is to say of each algorithm, read from its source, so that the command line says it without torch.

A class is what its file and the files of its bases say. Names in annotations and defaults are looked up where they are
written, or in the module that they are imported from.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from coterie import lazy
from coterie.experiment.field_docs import REQUIRED, Explained, comments, words

ALGORITHMS = "coterie.algorithms"


@dataclass(frozen=True)
class AlgorithmDocs:
    """One algorithm, in words."""

    title: str
    text: str  # its docstring
    needs_server: bool
    settings: list[Explained]
    bibtex: str


def algorithm_docs() -> dict[str, AlgorithmDocs]:
    """All algorithms, by title."""
    found = [_Names(module)[name] for name, module in lazy.imports(ALGORITHMS).items() if _is_ours(module)]
    docs = [_docs(one) for one in found if isinstance(one, _Class)]
    return {one.title: one for one in docs}


def _is_ours(module: str) -> bool:
    return module.startswith(f"{ALGORITHMS}.") and not module.endswith(".registry")


def _docs(one: _Class) -> AlgorithmDocs:
    text = inspect.cleandoc(ast.get_docstring(one.node) or "")
    return AlgorithmDocs(one.title(), text, one.needs_server, _settings(one), one.bibtex)


def _settings(one: _Class) -> list[Explained]:
    """The fields of a dataclass; one that is written anew keeps its place."""
    found: dict[str, Explained] = {}
    for kind in reversed(list(one.lineage())):
        found.update(_own_settings(kind))
    return list(found.values())


@cache
def _own_settings(kind: _Class) -> dict[str, Explained]:
    found = {}
    names, meanings = _Names(kind.module), comments(lazy.source(kind.module), kind.node)
    for field in kind.node.body:
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).startswith("ClassVar"):
            name, hint = ast.unparse(field.target), words(names.value(field.annotation))
            default = REQUIRED if field.value is None else repr(names.value(field.value))
            found[name] = Explained(name, hint, default, meanings.get(name, ""))
    return found


@dataclass(frozen=True)
class _Class:
    """A class as it is written."""

    module: str
    node: ast.ClassDef

    def lineage(self) -> Iterator[_Class]:
        """Itself and its bases."""
        yield self
        for base in self.node.bases:
            yield from _Names(self.module).value(base).lineage()

    def __getattr__(self, name: str) -> Any:
        """An attribute of the class, its own or that of a base."""
        for kind in self.lineage():
            for line in kind.node.body:
                if isinstance(line, ast.AnnAssign | ast.Assign) and line.value and name in _targets(line):
                    return _Names(kind.module).value(line.value)
        raise AttributeError(name)

    def title(self) -> str:
        """What the class method `title` returns."""
        for kind in self.lineage():
            for line in kind.node.body:
                if isinstance(line, ast.FunctionDef) and line.name == "title":
                    returned = line.body[-1]
                    assert isinstance(returned, ast.Return)
                    assert returned.value
                    return str(_value(returned.value, {"cls": SimpleNamespace(__name__=self.node.name)}))
        raise AttributeError("title")


class _Names(dict[str, Any]):
    """The names of a module, each worked out when it is asked for."""

    def __init__(self, module: str):
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> Any:
        line = _lines(self.module)[name]
        if isinstance(line, ast.ImportFrom):
            written = next(each.name for each in line.names if name in (each.name, each.asname))
            ours = str(line.module).startswith("coterie")
            return (
                _Names(str(line.module))[written]
                if ours
                else getattr(import_module(str(line.module)), written)
            )
        if isinstance(line, ast.ClassDef):
            return _Class(self.module, line)
        assert isinstance(line, ast.Assign | ast.AnnAssign)
        assert line.value
        return self.value(line.value)

    def value(self, expression: ast.expr) -> Any:
        return _value(expression, self)


def _value(expression: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "source", "eval"), {}, names)


@cache
def _lines(module: str) -> dict[str, ast.stmt]:
    """The names that a module gives, each with its line."""
    found: dict[str, ast.stmt] = {}
    for outer in ast.parse(lazy.source(module)).body:
        for line in outer.body if isinstance(outer, ast.If) else [outer]:
            if isinstance(line, ast.ImportFrom):
                found.update({each.asname or each.name: line for each in line.names})
            elif isinstance(line, ast.ClassDef):
                found[line.name] = line
            elif isinstance(line, ast.Assign | ast.AnnAssign):
                found.update(dict.fromkeys(_targets(line), line))
    return found


def _targets(line: ast.Assign | ast.AnnAssign) -> list[str]:
    return [ast.unparse(one) for one in (line.targets if isinstance(line, ast.Assign) else [line.target])]
