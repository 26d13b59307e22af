"""The docs say what is."""

from __future__ import annotations

import configparser
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from coterie import FedAvg
from coterie.experiment.experiment import load
from coterie.protocol import Algorithm, Received
from coterie.testing import Contract, contracts
from tests.builders import ROOT, messages, state

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


def test_pages_show_every_picture_of_a_reproduction() -> None:
    """One whose runs were made with former settings is on no page."""
    folder = DOCS / "reproduction"
    shown = "".join(page.read_text(encoding="utf-8") for page in folder.glob("*.md"))
    assert [path.name for path in folder.glob("*.png") if f"({path.name})" not in shown] == []


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


def test_the_rooms_are_listed_as_they_are_checked() -> None:
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    layers = rules["importlinter:contract:rooms"]["layers"].replace("coterie.", "").split("\n")[1:]
    chain = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert " > ".join(layers) in " ".join(chain.split())
    page = (DOCS / "explanation" / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| ", page.partition("## The rooms of the code")[2], re.MULTILINE)
    assert [row.replace("`", "").replace("\\|", "|") for row in rows[: len(layers)]] == layers


def test_terms_of_the_explanation_are_in_the_glossary() -> None:
    page = (DOCS / "explanation" / "index.md").read_text(encoding="utf-8")
    glossary = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    words = {re.sub(r"\W", "", word) for word in re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)}
    terms = re.findall(r"(?<![*\w])\*{1,2}([A-Za-z ]+?)\.?\*{1,2}", page)
    assert len(terms) > 8
    assert [term for term in terms if term.lower().removesuffix("s") not in words] == []


def fedavgm() -> type[Algorithm]:
    """As the page on adding an algorithm has it."""
    page = (DOCS / "how-to" / "add-an-algorithm.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n((?:(?!```).)*class FedAvgM.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(block, names)
    return cast("type[Algorithm]", names["FedAvgM"])


@pytest.mark.parametrize("contract", contracts(fedavgm()), ids=str)
def test_contracts_of_fedavgm(contract: Contract) -> None:
    contract()


def test_two_rounds_of_fedavgm_by_hand() -> None:
    algorithm = fedavgm()()
    known = algorithm.begin(state([[[1.0]]], 2))
    for sent, expected in ((3.0, 3.0), (2.0, 3.8)):  # v = −2; then v = 0.9·(−2) + 3 − 2 = −0.8
        received = Received.by_server(messages([0, 1], row=[[sent - 1], [sent + 1]], size=[5, 5]))
        known = algorithm.combine(known, received)
        assert float(known.centers) == pytest.approx(expected)


def test_the_lines_of_the_readme_find_two_groups() -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    rules, clinics = torch.randn(2, 5, generator=g), {}
    for number, letter in enumerate("abcdefgh"):
        x = torch.randn(100, 5, generator=g)
        clinics[f"clinic-{letter}"] = x, (x @ rules[number % 2] > 0).long()
    x, y = clinics["clinic-b"]
    names = {"clinics": clinics, "Net": lambda: nn.Linear(5, 2), "x": x, "y": y}
    exec(_only_block("python", (ROOT / "README.md").read_text(encoding="utf-8")), names)
    importance = torch.tensor(names["run"].importance.to_numpy())  # type: ignore[attr-defined]
    first = importance[:1].round()
    torch.testing.assert_close(importance[::2], first.expand(4, 2), rtol=0, atol=0.01)
    torch.testing.assert_close(importance[1::2], 1 - first.expand(4, 2), rtol=0, atol=0.01)


def test_the_command_of_the_readme_fits_its_experiment(tmp_path: Path) -> None:
    page, path = (ROOT / "README.md").read_text(encoding="utf-8"), tmp_path / "experiment.toml"
    path.write_text(_only_block("toml", page))
    changes = re.findall(r"coterie run experiment.toml.* --set (\S+)", page)
    assert changes
    load(path, changes)


def _only_block(language: str, page: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(block)


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, and the heading there, if any."""
    found = re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
    return [((page.parent / path).resolve() if path else page, heading) for path, heading in found]


def headings(page: Path) -> set[str]:
    """The names by which headings can be linked to, made as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize(
    ("left", "shown"),  # of every size that has results, how many runs are missing
    [
        ({"full": 0, "bounded": 0}, ["full"]),
        ({"full": 3, "bounded": 0}, ["full", "bounded"]),
        ({"full": 3, "bounded": 2, "quick": 0}, ["full", "bounded"]),
        ({"bounded": 2}, ["bounded"]),
        ({"quick": 0}, ["quick"]),
        ({}, []),
    ],
)
def test_the_sizes_that_a_page_shows(
    left: dict[str, int], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger size that was run in part is not hidden by a smaller one, nor is a quick one beside any other."""
    build = runpy.run_path(str(DOCS / "build.py"))
    names = build["_runs"].__globals__
    nothing = SimpleNamespace(lines=[], former=[])
    results = {size: SimpleNamespace(lines=[1], former=[], size=size) for size in left}
    loaded = SimpleNamespace(load=lambda _path, _item, size: results.get(size, nothing))
    monkeypatch.setitem(names, "Results", loaded)
    monkeypatch.setitem(names, "missing", lambda _item, size, _results: [None] * left[size])
    item = build["load"]("fedsoft-table-1", ROOT / "experiments")
    found = build["_runs"](item)
    assert [size for size, _ in found] == shown
    tested = {"full": "open", "bounded": "held", "quick": "not held"}
    monkeypatch.setitem(names, "claims", lambda _item, one: [("it is so", tested[one.size], "")])
    expected = ["held"] if "bounded" in shown else [tested[shown[0]]] if shown else []
    assert list(build["_outcomes"](item, found).elements()) == expected
