"""A part of an item: which runs it has, and what is said of a part that there is not."""

from __future__ import annotations

import pytest

from coterie.errors import CoterieError
from coterie.reproduction.items import Item, folder_of_items, load
from coterie.reproduction.page import markdown
from coterie.reproduction.part import Part
from coterie.reproduction.play import Wanted, missing
from coterie.reproduction.results import Line, Results, place


@pytest.fixture(scope="module")
def item() -> Item:
    """Eight variants of three methods, five seeds."""
    return load("fedsoft-table-1", folder_of_items())


def left(item: Item, part: Part) -> list[Wanted]:
    return missing(item, "full", Results(place(folder_of_items(), item, "full")), part)


def test_a_part_has_the_runs_that_fit_all_that_is_named(item: Item) -> None:
    part = Part(("synthetic*", "letters 10:90"), ("FedSoft",), (0, 3))
    found = left(item, part)
    assert {one.variant for one in found} == {
        "synthetic 10:90",
        "synthetic 30:70",
        "synthetic linear",
        "synthetic random",
        "letters 10:90",
    }
    assert {one.method for one in found} == {"FedSoft"}
    assert {one.seed for one in found} == {0, 3}
    assert len(found) == 10
    assert len(left(item, Part())) == item.runs("full") == 120


def test_items_without_any_of_it_are_left_out(item: Item) -> None:
    others = [load(name, folder_of_items()) for name in ("fedsoft-table-3", "kfed-table-1")]
    assert Part(("letters*",)).chosen([item, *others], "full") == [item]
    assert Part(seeds=(0,)).chosen([item, *others], "full") == [item, *others]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            Part(("lettres 10:90",)),
            "--variant is 'lettres 10:90', which there is not, the nearest is 'letters 10:90'; allowed are 'letters",
        ),
        (
            Part(methods=("FedAvg",)),
            "--method is 'FedAvg', which there is not; allowed are 'FedSoft', 'FedSoft as",
        ),
        (Part(seeds=(0, 7)), "--seeds has 7; allowed are 0, 1, 2, 3, 4"),
    ],
)
def test_a_name_that_there_is_not_is_said(item: Item, part: Part, said: str) -> None:
    with pytest.raises(CoterieError) as problem:
        part.chosen([item], "full")
    assert said in str(problem.value)


def test_a_clustering_has_no_methods_to_choose() -> None:
    items = [load(name, folder_of_items()) for name in ("kfed-figure-4", "kfed-table-1")]
    assert Part(methods=("k-FED*",)).chosen(items, "full") == items[:1]
    with pytest.raises(CoterieError, match="items that compute all their methods at once; leave it out"):
        Part(methods=("k-FED*",)).chosen(items[1:], "full")


def test_names_that_no_run_has_together_are_said(item: Item) -> None:
    items = [item, load("fedsoft-table-3", folder_of_items())]
    rows = items[1].hashes("full")
    ((_, other), *_) = [row for row in rows if row[1] not in {m for _, m in item.hashes("full")}]
    with pytest.raises(CoterieError, match="no run has such a variant, method and seed together"):
        Part(("letters*",), (other,)).chosen(items, "full")


def test_a_page_names_what_was_not_run(item: Item) -> None:
    """Methods and variants that lack the same seeds stand together."""
    results = Results(
        place(folder_of_items(), item, "full"), makers=[{"commit": "a", "machine": "b", "versions": "c"}]
    )
    lacking = (
        Part(("letters*",)),
        Part(("synthetic linear",), seeds=(3, 4)),
        Part(("synthetic random",), ("FedSoft",)),
    )
    for one in left(item, Part()):
        if not any(part.has(one.variant, one.method, one.seed) for part in lacking):
            results.lines += [
                Line(one.variant, one.method, column.name, one.seed, None, 1.0, 0, one.settings)
                for column in item.columns
            ]
    said = markdown(item, [("full", results)])
    assert (
        "- not run: 'synthetic linear' (seeds 3, 4); 'synthetic random': FedSoft; 'letters 10:90'; 'letters 30:70'; "
        "'letters linear'; 'letters random'\n" in said
    )
