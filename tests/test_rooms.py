"""The rooms of src/coterie, and the pictures of docs/explanation that show them and what goes on in them."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import grimp
import networkx
import pytest

from tests.builders import ROOT

PACKAGE = ROOT / "src" / "coterie"
PICTURES = ("rooms.png", "round.png")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "pictures"))


def test_no_file_imports_itself_through_others() -> None:
    """Imports inside functions and imports for types alone count too."""
    graph = grimp.build_graph("coterie", cache_dir=None)
    imports = networkx.DiGraph(
        (m, o) for m in graph.modules for o in graph.find_modules_directly_imported_by(m)
    )
    assert imports.number_of_edges() > 500
    assert [circle for circle in networkx.strongly_connected_components(imports) if len(circle) > 1] == []


def test_every_folder_says_what_it_holds() -> None:
    """All that is imported has an `__init__.py`, and each of these a docstring."""
    folders = sorted({file.parent for file in PACKAGE.rglob("*.py")})
    assert [str(folder) for folder in folders if not _docstring(folder / "__init__.py")] == []


def _docstring(file: Path) -> str | None:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_show_the_code_as_it_is(script: dict[str, Any], name: str) -> None:
    """To draw one looks up every name in it; a name that the code does not have is an error."""
    axes, shown = script["PICTURES"][name]()
    assert script["saved"](name) == shown, "run: python docs/pictures"
    assert script["collisions"](axes) == []


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_small(name: str) -> None:
    assert (ROOT / "docs" / "explanation" / name).stat().st_size < 200_000
