"""The docs say what is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from coterie import FedAvg
from coterie.testing import contracts
from tests.builders import ROOT

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


def test_the_page_on_adding_an_algorithm_shows_the_files_of_the_example() -> None:
    page = (DOCS / "how-to" / "add-an-algorithm.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    files = [path for end in ("py", "toml") for path in (ROOT / "examples" / "ditto").rglob(f"*.{end}")]
    assert len(files) == 4
    assert [path.name for path in files if path.read_text(encoding="utf-8") not in blocks] == []
    names = [contract.name for contract in contracts(FedAvg) if contract.case.place == "server"]
    assert re.findall(r"^\| ([a-z ]+) \|", page, re.MULTILINE) == ["contract", *names]


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, and the heading there, if any."""
    found = re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
    return [((page.parent / path).resolve() if path else page, heading) for path, heading in found]


def headings(page: Path) -> set[str]:
    """The names by which headings can be linked to, made as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
