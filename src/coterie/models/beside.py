"""Modules that lie beside an experiment: found, listed with all that they import from there, and read from source.

Bytecode may lie there too, in __pycache__. It may be that of other code than one reads in the source, so it is not run.
"""

from __future__ import annotations

import ast
import os
import site
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType

_folders: set[str] = set()  # whose modules are read from source
_INSTALLED = (sys.prefix, sys.base_prefix, site.getuserbase())  # below them lie installed packages
_CODE = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


class FromSource(SourceFileLoader):
    """Never from bytecode, and none is written."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def find(module: str, folder: Path) -> ModuleSpec | None:
    """Of a module or a package that lies there."""
    return _finder(str(folder)).find_spec(module)


def _finder(path: str) -> FileFinder:
    return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (FromSource, SOURCE_SUFFIXES))


def open_to_imports(folder: Path) -> None:
    """Let modules import others from this folder; it comes last, so that it stands in for no other module."""
    path = str(folder)
    if _hook not in sys.path_hooks:
        sys.path_hooks.insert(0, _hook)
    if path not in _folders:
        _folders.add(path)
        for known in [one for one in sys.path_importer_cache if _is_beside(one)]:
            del sys.path_importer_cache[known]
    if path not in sys.path:
        sys.path.append(path)


def _hook(path: str) -> FileFinder:
    if not _is_beside(path):
        raise ImportError
    return _finder(path)


def _is_beside(path: str) -> bool:
    return any(_below(path, folder) and not _installed(path, folder) for folder in _folders)


def _installed(path: str, folder: str) -> bool:
    """Of an environment that lies below the experiment's folder, as .venv often does."""
    return any(_below(path, home) and not _below(folder, home) for home in _INSTALLED)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def files_of(module: str, folder: Path) -> list[Path]:
    """The files of a module there, and of all there that it imports, and so on; of a package all its files."""
    seen: set[str] = set()
    files: set[Path] = set()
    waiting = {module}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        spec = find(name, folder)
        new = set(_files(spec)) - files if spec is not None else set()
        files |= new
        waiting |= {one for file in new for one in _imported_by(file)} - seen
    return sorted(files)


def _files(spec: ModuleSpec) -> list[Path]:
    if spec.submodule_search_locations is None:
        return [] if spec.origin is None else [Path(spec.origin)]
    return [file for place in spec.submodule_search_locations for file in _code_below(place)]


def _code_below(folder: str) -> list[Path]:
    """In linked folders too, since imports enter them; in each once, for links may lead round."""
    files: list[Path] = []
    seen: set[str] = set()
    for place, inner, names in os.walk(folder, followlinks=True):
        inner.sort()  # so that the same of two links is taken wherever the folder is copied
        if os.path.realpath(place) in seen:
            inner.clear()
            continue
        seen.add(os.path.realpath(place))
        files += [Path(place, name) for name in names if name.endswith(_CODE)]
    return files


def _imported_by(file: Path) -> set[str]:
    """The first parts of what its import statements name; relative ones stay in their package."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):  # no source
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return {name.partition(".")[0] for name in names}
