"""The docs say what is."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie import ALGORITHMS
from coterie.experiment.field_docs import REQUIRED, Explained, explained

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TEXTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
PAGES = runpy.run_path(str(DOCS / "build.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_pages_made_from_the_code_are_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: python docs/build.py"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_readme_names_every_algorithm_and_where_it_runs(name: str) -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    row = next(row for row in rows if name in row[1].split(", "))
    assert row[2:4] == ["✓", "" if ALGORITHMS[name].needs_server else "✓"]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@dataclass
class Base:
    size: int  # how many
    kind: str = "#1"  # of which sort
    plain: bool = False


@dataclass
class Derived(Base):
    kind: str = "b"
    path: str | Path = "here"  # where it lies


def test_the_meaning_of_a_setting_is_the_comment_beside_it() -> None:
    assert explained(Base) == [
        Explained("size", "a whole number", REQUIRED, "how many"),
        Explained("kind", "a text in quotes", "'#1'", "of which sort"),
        Explained("plain", "true or false", "False", ""),
    ]


def test_meanings_are_inherited_but_for_fields_written_anew() -> None:
    found = {one.name: one for one in explained(Derived)}
    assert list(found) == ["size", "kind", "plain", "path"]
    assert [found[name].meaning for name in ("size", "kind", "path")] == ["how many", "", "where it lies"]
    assert found["path"].type == "a path"


def test_functions_are_explained_too() -> None:
    def make(
        size: int,  # how many
        wide: float = 2.0,
    ) -> None: ...

    assert [(one.name, one.default, one.meaning) for one in explained(make)] == [
        ("size", REQUIRED, "how many"),
        ("wide", "2.0", ""),
    ]
