"""A table or figure of a paper as data: an experiment in three sizes and several variants, and what was published."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie import toml
from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment, parse
from coterie.reproduction.claims import Claim
from coterie.validation import nearest

SIZES = ("quick", "bounded", "full")
PAPERS = ("fedsoft", "kfed", "wecfl", "fedspd")
Cell = tuple[str, str, str]  # variant, method, column
Row = tuple[str, str]  # variant, method; a clustering runs all methods at once, which are then one of no name


@dataclass(frozen=True)
class Column:
    name: str
    of: str  # the measure (reproduction/measures.py); of a clustering, the name that it has there
    better: str

    @property
    def by_round(self) -> bool:
        return self.of.endswith("_by_round")


@dataclass(frozen=True)
class Item:
    """One table or figure."""

    name: str
    table: toml.Table  # the file as it is
    published: toml.Table

    @property
    def title(self) -> str:
        return str(self.table["title"])

    @property
    def kind(self) -> str:
        return str(self.table["kind"])

    @property
    def figure(self) -> str | None:
        """How it is drawn; a table is not."""
        found: str | None = self.table.get("figure")
        return found

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(one["name"], one.get("of", one["name"]), one["better"]) for one in self.table["column"]
        )

    @property
    def variants(self) -> dict[str, Mapping[str, Any]]:
        """By name, what each changes; without any there is one of no name that changes nothing."""
        return {one["name"]: one["set"] for one in self._variants}

    @property
    def _variants(self) -> list[toml.Table]:
        found: list[toml.Table] = self.table.get("variant", [{"name": "", "set": {}}])
        return found

    def changes(self, variant: str, size: str) -> dict[str, Any]:
        """What a size changes: of all variants, and of this one alone."""
        own = next(one for one in self._variants if one["name"] == variant).get(size, {})
        return {**self.table["size"][size]["set"], **own}

    def heading(self, variant: str) -> str:
        """What stands over a variant's numbers; one that is a mere number says of what."""
        return f"{self.table['varied']} = {variant}" if variant and "varied" in self.table else variant

    def in_order(self, methods: Iterable[str]) -> list[str]:
        """Each once, as the item lists them; those of a clustering as they come."""
        listed = [one["label"] for one in self.table.get("experiment", {}).get("method", ())]
        return sorted(dict.fromkeys(methods), key=lambda one: listed.index(one) if one in listed else -1)

    def seeds(self, size: str) -> tuple[int, ...]:
        return tuple(self.table["size"][size]["seeds"])

    def cost(self, size: str) -> str:
        """About how long it takes, such as 3 GPU minutes."""
        return " and ".join(
            f"{number:g} {kind.upper()} min" for kind, number in self.table["cost"][size].items()
        )

    def minutes(self, size: str) -> float:
        return float(sum(self.table["cost"][size].values()))

    def runs(self, size: str) -> int:
        """How many there are in all."""
        methods = len(self.table["experiment"]["method"]) if self.kind == "runs" else 1
        return len(self.variants) * methods * len(self.seeds(size))

    def settings(self, variant: str, size: str) -> toml.Table:
        """The experiment or clustering: first the variant's changes, then the size's, of all and of this one."""
        changed: toml.Table = deepcopy(self.table["experiment" if self.kind == "runs" else "clustering"])
        for changes in (self.variants[variant], self.changes(variant, size)):
            for key, value in changes.items():
                toml.put(changed, key.split("."), deepcopy(value))
        return changed

    def experiment(self, variant: str, size: str, seed: int) -> Experiment:
        return parse({**self.settings(variant, size), "seed": seed, "name": self.name})

    def hashes(self, size: str) -> dict[Row, str]:
        """What is run for each row, as a short hash of all its settings but the seed.

        Of an experiment these are the resolved ones, so that a changed default of coterie is seen too.
        """
        found: dict[Row, str] = {}
        for variant in self.variants:
            if self.kind == "clustering":
                found[variant, ""] = _short_hash(self.settings(variant, size))
                continue
            experiment = self.experiment(variant, size, seed=0)
            for method in experiment.methods:
                resolved = toml.read(experiment.only(method).resolved(), self.name)
                settings = {k: v for k, v in resolved.items() if k not in ("name", "label", "seed")}
                found[variant, method.label] = _short_hash(settings)
        return found

    def values(self) -> dict[Cell, tuple[float, float | None]]:
        """What the paper has, in our unit: mean and, where it gives one, deviation."""
        scale = self.published.get("scale", 1)
        found = {}
        for cell in self.published.get("cell", ()):
            for column, value in cell["values"].items():
                mean, std = value if isinstance(value, list) else (value, None)
                place = (cell.get("variant", ""), cell["method"], column)
                found[place] = (mean / scale, None if std is None else std / scale)
        return found

    @property
    def data(self) -> str:
        """The data sets of its variants; of points that a clustering draws, what they are."""
        each = [self.settings(variant, "full") for variant in self.variants]
        found = [one.get("data", one) for one in each]
        return ", ".join(dict.fromkeys(str(one.get("source") or one.get("task")) for one in found))

    def found(self, size: str) -> list[str]:
        """What we say of the results of this size: what matched, what did not and why."""
        return [*self.table.get("found", {}).get(size, ())]

    def claims(self) -> list[Claim]:
        return [
            Claim(one["says"], one["where"], tuple(one.get("holds", ())), one.get("not_testable"))
            for one in self.published.get("claim", ())
        ]


def _short_hash(settings: toml.Table) -> str:
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def folder_of_items() -> Path:
    """In the package, or, where coterie runs from its repository, experiments/ there."""
    packaged = Path(__file__).parent / "items"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "experiments"


def names(folder: Path) -> list[str]:
    """All items, by paper, tables before figures."""
    found = [
        f"{paper}-{path.stem}"
        for paper in PAPERS
        for path in (folder / paper).glob("*-*.toml")
        if not path.stem.endswith(".published")
    ]

    def place(name: str) -> tuple[int, bool, int]:
        paper, kind, number = name.split("-")
        return PAPERS.index(paper), kind == "figure", int(number)

    return sorted(found, key=place)


def matching(word: str, folder: Path) -> list[str]:
    """The items that a word names: one, or all of a paper."""
    known = names(folder)
    papers = list(dict.fromkeys(name.partition("-")[0] for name in known))
    found = [name for name in known if word in (name, name.partition("-")[0])]
    if not found:
        raise CoterieError(
            f"there is no item {word!r}{nearest(word, [*known, *papers])}; allowed are those that "
            f"`coterie reproduce` lists, and {', '.join(papers)} for all of a paper"
        )
    return found


def load(name: str, folder: Path) -> Item:
    (name,) = matching(name, folder)
    path = folder / re.sub("-", "/", name, count=1)

    def read(file: Path) -> toml.Table:
        return toml.read(file.read_text(encoding="utf-8"), str(file))

    return Item(name, read(path.with_suffix(".toml")), read(path.with_suffix(".published.toml")))
