"""The docs say what is."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.experiment.field_docs import REQUIRED, Explained, explained

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TEXTS = sorted({*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *DOCS.rglob("*.md")})
INDEX = [DOCS / "README.md", DOCS / "decisions" / "README.md"]
PAGES = runpy.run_path(str(DOCS / "build.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_pages_made_from_the_code_are_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: python docs/build.py"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [str(target) for target, _ in links(page) if not target.exists()] == []
    assert [
        (target.name, name) for target, name in links(page) if name and name not in headings(target)
    ] == []


def test_the_index_has_every_page() -> None:
    linked = {target for index in INDEX for target, _ in links(index)}
    assert [str(page) for page in DOCS.rglob("*.md") if page not in linked and page not in INDEX] == []


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, and the heading there, if any."""
    found = re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
    return [((page.parent / path).resolve() if path else page, heading) for path, heading in found]


def headings(page: Path) -> set[str]:
    """The names by which headings can be linked to, made as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


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
