"""The docs say what is."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_algorithms_is_current() -> None:
    page = runpy.run_path(str(DOCS / "build.py"))["page"]()
    assert (DOCS / "algorithms.md").read_text() == page, "run: python docs/build.py"
