"""`[data]`: what may be written for each source, the defaults, and the federation that is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field

from coterie import data
from coterie.data.federation import Federation
from coterie.data.named import DATA_SETS, defaults
from coterie.data.partitions.settings import Partition
from coterie.data.sources.joined import Labels
from coterie.experiment.schema import Section, Setting, Table, check, choose, parameters, saying, spell

SOURCES: dict[str, Callable[..., Federation]] = {  # besides the data sets of `named.DATA_SETS`
    "regressions": data.regressions,
    "gaussians": data.gaussians,
    "folder": data.from_folder,
    "table": data.from_table,
}
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def data_section(section: Section, folder: Path) -> Table:
    """Every setting of the source, checked; relative paths begin in `folder`."""
    source = _source(section)
    section = check(section.without("source"), _settings(source), also=("source",))
    for key in _paths(source):
        section.values[key] = str(folder / section.values[key])
    return {"source": source, **section.values}


def spelled_data(table: Table) -> Table:
    """As it is written to a file."""
    return spell(table, {"source": Setting(str), **_settings(table["source"])})


def federation_of(table: Table, seed: int) -> Federation:
    """The clients' data; `seed` is the experiment's, which the section may leave it to."""
    settings = {key: value for key, value in table.items() if key != "source"}
    settings["seed"] = seed if settings["seed"] is None else settings["seed"]
    source = table["source"]
    with saying(Section("data", settings)):
        return SOURCES[source](**settings) if source in SOURCES else data.named(source, **settings)


def _source(section: Section) -> str:
    """A name, or several data sets joined by +."""
    given = section.values.get("source")
    if not isinstance(given, str) or "+" not in given:
        return choose(section, "source", (*DATA_SETS, *SOURCES))
    each = [replace(section, values={"source": name.strip()}) for name in given.split("+")]
    return "+".join(choose(one, "source", DATA_SETS) for one in each)


def _settings(source: str) -> dict[str, Setting]:
    """A source's own parameters; paths are texts in TOML, and the seed may be left to the experiment."""
    known = parameters(SOURCES[source]) if source in SOURCES else _of_data_set(source)
    paths = {key: replace(known[key], hint=str) for key in _paths(source)}
    return {**known, **paths, "seed": Setting(Seed | None, None)}


def _paths(source: str) -> list[str]:
    known = parameters(SOURCES[source]) if source in SOURCES else {}
    return [key for key, one in known.items() if Path in get_args(one.hint)]


def _of_data_set(source: str) -> dict[str, Setting]:
    """Those of `Partition`, with the defaults of this data set, and what only some data sets take."""
    usual = defaults(source)
    found = {key: replace(one, default=getattr(usual, key)) for key, one in parameters(Partition).items()}
    if source == "digits":
        found["image"] = Setting(bool, False)
    if "+" in source:
        found["labels"] = Setting(Labels, "shared")
    return {**found, "seed": Setting(int, 0)}
