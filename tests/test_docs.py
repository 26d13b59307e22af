"""The docs say what is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from coterie import ALGORITHMS
from tests.builders import ROOT

DOCS = ROOT / "docs"
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


LINKING = [
    *(ROOT / folder / "README.md" for folder in (".", "benchmarks", "experiments")),
    *sorted(DOCS.glob("*.md")),
]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
