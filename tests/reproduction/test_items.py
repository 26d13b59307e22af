"""The tables and figures under experiments/: whole, readable, and every name in them known."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie import toml
from coterie.experiment.experiment import Experiment, parse
from coterie.reproduction.claims import Comparison, check
from coterie.reproduction.clusterings import TASKS
from coterie.reproduction.items import Item
from coterie.reproduction.measures import curve, measure
from coterie.reproduction.play import folder_name
from tests.builders import ROOT

NUMBERS = {  # the tables and figures of each paper that show results
    "fedsoft": {"table": (1, 2, 3, 4, 5, 6, 7, 8), "figure": (1, 2)},
    "kfed": {"table": (1, 2), "figure": (1, 2, 3, 4, 5)},
    "wecfl": {"table": (2, 5), "figure": (2, 3, 4, 5, 7, 8)},
    "fedspd": {"table": (2, 3, 4, 5, 6, 7, 8, 9), "figure": (2, 3, 4, 5, 6, 7, 8, 9, 10)},
}
FOLDER = ROOT / "experiments"
ITEMS = [f"{p}/{kind}-{n}" for p, kinds in NUMBERS.items() for kind, ns in kinds.items() for n in ns]
SIZES = ("quick", "bounded", "full")
FIGURES = ("curves", "lines", "bars", "heatmap", "scatter", "importance")


def read(path: Path) -> dict[str, Any]:
    return toml.read(path.read_text(encoding="utf-8"), str(path))


def item(name: str) -> dict[str, Any]:
    return read(FOLDER / f"{name}.toml")


def published(name: str) -> dict[str, Any]:
    return read(FOLDER / f"{name}.published.toml")


def variants(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name, what each changes; without any there is one of no name that changes nothing."""
    return {one["name"]: one["set"] for one in found.get("variant", [{"name": "", "set": {}}])}


def experiments(found: dict[str, Any]) -> Iterator[Experiment]:
    """Every variant of every size; no data is read."""
    for name in variants(found):
        for size in SIZES:
            table = Item("", found, {}).settings(name, size)
            yield parse({**table, "seed": found["size"][size]["seeds"][0]})


def methods(found: dict[str, Any]) -> set[str]:
    if found["kind"] == "clustering":
        return METHODS[found["clustering"]["task"]]
    return {method["label"] for method in found["experiment"]["method"]}


METHODS = {
    "gaussians": {"k-FED one start", "k-FED", "pooled k-means"},
    "partitions": {"k-FED", "k-FED IID", "distributed k-means"},
    "separation": {"pooled k-means"},
    "personalise": {"Local", "Global", "IFCA random init", "IFCA", "k-FED one start", "k-FED"},
}


def test_there_are_all_tables_and_figures_and_no_other() -> None:
    there = {str(f.relative_to(FOLDER).with_suffix("")) for f in FOLDER.glob("*/*-*.toml")}
    assert there == {*ITEMS, *(f"{name}.published" for name in ITEMS)}
    assert [sum(kind in name for name in ITEMS) for kind in ("table", "figure")] == [20, 22]


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_says_what_it_is(name: str) -> None:
    found = item(name)
    assert found["title"]
    assert found["shows"].endswith(".")
    assert found["kind"] in ("runs", "clustering")
    assert ("figure" in found) == ("figure" in name)
    assert found.get("figure", "bars") in FIGURES
    assert [(size, min(found["cost"][size].values()) > 0) for size in found["cost"]] == [
        (size, True) for size in SIZES
    ]
    assert list(found["size"]) == list(SIZES)
    assert all(found["size"][size]["seeds"] for size in SIZES)
    assert len(variants(found)) == len(found.get("variant", [1]))
    assert all(one.keys() <= {"name", "set", *SIZES} for one in found.get("variant", ()))
    assert found.get("found", {}).keys() <= set(SIZES)
    numbers = all(re.fullmatch(r"[0-9.]+", one) for one in variants(found))
    assert numbers == ("varied" in found)  # a mere number needs a name on the page
    assert len({one["name"] for one in found["column"]}) == len(found["column"])
    assert all(one["better"] in ("higher", "lower", "") for one in found["column"])


@pytest.mark.parametrize("name", [name for name in ITEMS if item(name)["kind"] == "runs"])
def test_every_variant_of_every_size_is_an_experiment(name: str) -> None:
    found = item(name)
    made = list(experiments(found))
    assert len(made) == len(SIZES) * len(variants(found))
    for one in made:
        assert {method.label for method in one.methods} == methods(found)
    for column in found["column"]:
        assert callable((curve if column["of"].endswith("_by_round") else measure)(column["of"]))


@pytest.mark.parametrize("name", [name for name in ITEMS if item(name)["kind"] == "clustering"])
def test_every_variant_of_every_size_is_a_clustering(name: str) -> None:
    found = item(name)
    for variant in variants(found):
        for size in SIZES:
            settings = Item("", found, {}).settings(variant, size)
            inspect.signature(TASKS[settings.pop("task")]).bind(seed=0, **settings)


@pytest.mark.parametrize("name", ITEMS)
def test_every_published_value_has_a_place(name: str) -> None:
    found, said = item(name), published(name)
    columns = {one["name"] for one in found["column"]}
    assert said["where"].lower().replace(" ", "-") == name.split("/")[1]
    places = set()
    for cell in said.get("cell", []):
        assert cell.get("variant", "") in variants(found)
        assert cell["method"] in methods(found)
        assert cell["values"].keys() <= columns
        assert all(isinstance(v, int | float) or len(v) == 2 for v in cell["values"].values())
        places.add((cell.get("variant", ""), cell["method"]))
    assert len(places) == len(said.get("cell", []))
    assert said.get("cell") or "figure" in name


@pytest.mark.parametrize("name", ITEMS)
def test_every_claim_compares_what_is_measured(name: str) -> None:
    found, claims = item(name), published(name)["claim"]
    assert claims
    for claim in claims:
        assert claim["says"]
        assert claim["where"]
        assert bool(claim.get("holds")) != bool(claim.get("not_testable"))
        for text in claim.get("holds", []):
            comparison = Comparison.of(text)
            stars = {_check(reference, found) for reference in comparison.references()}
            assert len(stars) == 1, f"{text}: * on one side alone"
            assert comparison.left != comparison.right, f"{text}: always so"


def _check(reference: list[str], found: dict[str, Any]) -> bool:
    """Does VARIANT / METHOD / COLUMN name what there is? Whether the variant is *, for all of them."""
    variant, method, column = reference
    assert variant == "*" or variant in variants(found), reference
    assert method in methods(found), reference
    known = {one["name"]: one["of"] for one in found["column"]}
    assert column in known, reference
    assert not known[column].endswith("_by_round"), reference
    return variant == "*"


@pytest.mark.parametrize("name", ITEMS)
def test_no_claim_is_contradicted_by_the_papers_own_numbers(name: str) -> None:
    one = Item(name, item(name), published(name))
    cells = {cell: mean for cell, (mean, _) in one.values().items()}
    for claim in one.claims():
        outcome, numbers = check(claim, cells, list(one.variants))
        assert outcome != "not held", (claim.says, numbers)


@pytest.mark.parametrize("name", [name for name in ITEMS if item(name)["kind"] == "runs"])
def test_published_rows_begin_at_random_centers_and_others_say_how(name: str) -> None:
    """The papers begin at random; what coterie begins with instead, by default, stands among the departures."""
    found = item(name)
    compared = {cell["method"] for cell in published(name).get("cell", [])}
    for claim in published(name)["claim"]:
        for text in claim.get("holds", []):
            compared |= {method for _, method, _ in Comparison.of(text).references()}
    said = " ".join(found["departures"])
    for experiment in experiments(found):
        for method in experiment.methods:
            assert method.lone is not None
            init = method.lone.init
            assert init == "random" or method.label not in compared, (method.label, init)
            assert init == "random" or f"`{init}`" in said, (method.label, init)


@pytest.mark.parametrize("name", ITEMS)
def test_every_variant_has_a_folder_of_its_own(name: str) -> None:
    known = variants(item(name))
    assert len({folder_name(variant) for variant in known}) == len(known)
