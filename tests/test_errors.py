"""Errors are said in one sentence, and can be sent from one process to another."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from coterie.errors import CoterieError, Lost, SettingError
from coterie.lazy import ROOT

DEFINES = re.compile(r"^class (\w+)\((CoterieError|SettingError|Lost|Interrupted|Refused)\):", re.MULTILINE)


def ours() -> list[type]:
    """Every error that a user may see, and what ends a run."""
    found: list[type] = [CoterieError]
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(["coterie", *path.relative_to(ROOT).with_suffix("").parts])
        names = [name for name, _ in DEFINES.findall(path.read_text(encoding="utf-8"))]
        found += [getattr(importlib.import_module(module), name) for name in names]
    return [*found, Lost]


@pytest.mark.parametrize("kind", ours(), ids=lambda kind: kind.__name__)
def test_every_error_can_be_pickled(kind: type) -> None:
    own: Any = kind
    needed = [
        name
        for name, one in inspect.signature(own.__init__).parameters.items()
        if one.kind is one.POSITIONAL_OR_KEYWORD and name != "self"
    ]
    error = own(*needed) if needed else own("what was wrong")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def refuse() -> None:
    raise SettingError("rounds", "is -1; allowed is 0 or more")


def test_a_pool_of_processes_gives_it_back() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        refused = pool.submit(refuse).exception()
    assert isinstance(refused, SettingError)
    assert (refused.setting, str(refused)) == ("rounds", "rounds is -1; allowed is 0 or more")
