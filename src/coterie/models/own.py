"""A model of the user's own, named 'module:attribute': found first, looked at next, and called only then.

An experiment may come from somebody else, so what it names must be a model: a subclass of nn.Module, or a function that
says it builds one. Modules of Python itself are never a model's home.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

from torch import nn

from coterie.errors import SettingError
from coterie.models import beside

F = TypeVar("F", bound=Callable[..., Any])

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_MARK = "builds_a_coterie_model"
_FOLDERS = "__coterie_folder__"  # of a module that an experiment brought: where it lies


def builds_model(function: F) -> F:
    """Mark a function that returns an nn.Module, so that an experiment may name it. `-> nn.Module` does the same."""
    setattr(function, _MARK, True)
    return function


def own_model(name: str, folder: Path | None) -> Callable[..., nn.Module]:
    """What builds it; `folder` is that of the experiment."""
    _check_name(name)
    module, _, attribute = name.partition(":")
    try:
        found: Any = _imported(module, folder)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, SyntaxError) as problem:
        raise SettingError(
            "name",
            f"is {name!r}, which cannot be imported ({problem}); allowed is a built-in model such as 'mlp', or "
            "'module:Net' beside the experiment or in an installed package",
        ) from problem
    if not _builds(found):
        raise SettingError(
            "name",
            f"is {name!r}, which is not known to build a model; allowed is a subclass of torch.nn.Module, or a "
            "function annotated '-> nn.Module' or marked with @coterie.builds_model",
        )
    return found  # type: ignore[no-any-return]


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise SettingError("name", f"is {name!r}; your own model is written 'module:Net', such as 'nets:Net'")


def sources_of(name: str, folder: Path | None) -> list[Path]:
    """The file of the code behind a name, then those beside it that it imports; found without running any of them."""
    _check_name(name)
    module, _, _ = name.partition(":")
    top, *inner = module.split(".")
    spec, here = _located(top, folder)
    for part in inner:
        spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or [])
    if spec is None or spec.origin is None:
        return []
    first = Path(spec.origin)
    others = beside.files_of(top, folder) if here and folder is not None else []
    return [first, *(file for file in others if file != first)]


def _located(top: str, folder: Path | None) -> tuple[ModuleSpec | None, bool]:
    """A module's spec, and whether it lies in the experiment's folder. Python's own are refused."""
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        raise SettingError(
            "name",
            f"names the module {top!r} of Python itself, which has no models; allowed is a module beside the "
            "experiment or in an installed package",
        )
    here = None if folder is None else beside.find(top, folder)
    if here is not None and here.origin is not None:
        return here, True
    return PathFinder.find_spec(top, [path for path in sys.path if path]), False


def _imported(module: str, folder: Path | None) -> ModuleType:
    top = module.split(".")[0]
    spec, here = _located(top, folder)
    if not here or spec is None:
        return importlib.import_module(module)
    assert folder is not None
    beside.open_to_imports(folder)
    _bring(top, spec, folder)
    return importlib.import_module(module)


def _bring(top: str, spec: ModuleSpec, folder: Path) -> None:
    """Load a module from the experiment's folder, in place of that of another experiment."""
    known = sys.modules.get(top)
    if known is not None and getattr(known, "__file__", None) == spec.origin:
        return
    if known is not None and not hasattr(known, _FOLDERS):
        raise ImportError(f"a module {top!r} is loaded already, from elsewhere; give yours another name")
    for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
        del sys.modules[name]
    made = module_from_spec(spec)
    setattr(made, _FOLDERS, str(folder))
    sys.modules[top] = made
    try:
        assert spec.loader is not None
        spec.loader.exec_module(made)
    except BaseException:
        sys.modules.pop(top, None)
        raise


def _builds(found: Any) -> bool:
    """Is it a model's class, or a function that says that it builds a model?"""
    if isinstance(found, type):
        return issubclass(found, nn.Module)
    if not inspect.isfunction(found):
        return False
    if getattr(found, _MARK, False) is True:
        return True
    try:
        returned = get_type_hints(found).get("return")
    except Exception:  # an annotation that means nothing here
        return False
    return isinstance(returned, type) and issubclass(returned, nn.Module)
