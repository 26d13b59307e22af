"""What settings mean: the comment beside each of them in the source, so that no meaning is written twice."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_args

from coterie.experiment.schema import REQUIRED as NO_DEFAULT
from coterie.experiment.schema import parameters
from coterie.validation import describe

REQUIRED = "required"


@dataclass(frozen=True)
class Explained:
    """One setting, in words."""

    name: str
    type: str
    default: str  # as it is written in Python, or REQUIRED
    meaning: str  # empty where nothing is written beside it


def explained(make: Callable[..., Any]) -> list[Explained]:
    """The settings of a dataclass, or of a function, in their order."""
    meanings: dict[str, str] = {}
    for kind in _sources(make):
        meanings.update(_meanings(kind))  # a field written anew has its own comment, or none
    return [
        Explained(name, words(setting.hint), _default(setting.default), meanings.get(name, ""))
        for name, setting in parameters(make).items()
    ]


def _sources(make: Callable[..., Any]) -> list[Any]:
    """Where its settings are written: a dataclass inherits some from its bases."""
    return (
        [kind for kind in reversed(inspect.getmro(make)) if is_dataclass(kind)]
        if inspect.isclass(make)
        else [make]
    )


def _meanings(make: Any) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(make))
    except OSError:  # the program may be installed without its source
        return {}
    return comments(source, ast.parse(source).body[0])


def comments(source: str, made: ast.stmt) -> dict[str, str]:
    """The comment at the end of the line, or lines, of each field or parameter of what is made in the source."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    beside = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    found = {}
    for name, node in _written(made):
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        found[name] = " ".join(beside[line] for line in lines if line in beside)
    return found


def _written(node: ast.stmt) -> list[tuple[str, ast.AnnAssign | ast.arg]]:
    """Names with the place where each is written."""
    if isinstance(node, ast.ClassDef):
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        return [(one.target.id, one) for one in fields if isinstance(one.target, ast.Name)]
    if isinstance(node, ast.FunctionDef):
        return [(one.arg, one) for one in (*node.args.args, *node.args.kwonlyargs)]
    return []


def words(hint: Any) -> str:
    return "a path" if Path in get_args(hint) else describe(hint)


def _default(value: Any) -> str:
    return REQUIRED if value is NO_DEFAULT else repr(value)
