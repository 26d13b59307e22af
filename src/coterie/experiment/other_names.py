"""Keys that are called otherwise or belong elsewhere: all that an experiment has of them, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coterie.engine.training import Training
from coterie.errors import CoterieError
from coterie.experiment.schema import Table, parameters

RENAMED = {  # keys from before 0.1.0, by the table that they were in: what they are called now
    "": {"start": "init", "tries": "n_init"},
    "training": {"rate": "learning_rate", "batch": "batch_size", "keep": "keep_optimizer"},
    "privacy": {"share_noise": "importance_noise"},
    "data": {"pattern": "mixture"},
    "choosing": {"starts": "n_init"},
}
RATE = "lr"  # what others call learning_rate


def refuse_other_names(table: Table) -> None:
    """Before anything else is checked, so that a file need not be mended key by key."""
    found = list(_in_file(table))
    if found:
        wrong, write = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
        raise CoterieError(f"{wrong}; write {write}")


def _in_file(table: Table) -> Iterator[tuple[str, str]]:
    """What is wrong, and what to write."""
    for name in ("data", "choosing"):
        yield from _in_table(table.get(name), name, f"{name}.")
    yield from _in_part(table, "")
    for i, method in enumerate(_tables(table.get("method"))):
        yield from _in_part(method, f"method.{i}.")


def _in_part(part: Table, prefix: str) -> Iterator[tuple[str, str]]:
    """Of the file, of a method, of a stage."""
    yield from _in_table(part, "", prefix)
    for name in ("training", "privacy"):
        yield from _in_table(part.get(name), name, f"{prefix}{name}.")
    for table, inside in ((part, prefix), (part.get("algorithm"), f"{prefix}algorithm.")):
        if isinstance(table, dict) and RATE in table:
            yield _rate(inside + RATE, prefix)
    settings = parameters(Training)
    for key in part:
        new = RENAMED["training"].get(key, key)
        if new in settings:
            yield f"{prefix}{key} is a setting of training", f"{prefix}training.{new}"
    for i, stage in enumerate(_tables(part.get("stage"))):
        yield from _in_part(stage, f"{prefix}stage.{i}.")


def _in_table(table: Any, kind: str, prefix: str) -> Iterator[tuple[str, str]]:
    for key in table if isinstance(table, dict) else ():
        new = RENAMED[kind].get(key)
        if new is not None:
            yield f"{prefix}{key} is now called {new}", prefix + new
        elif kind == "training" and key == RATE:
            yield _rate(prefix + key, prefix.removesuffix("training."))


def _rate(name: str, prefix: str) -> tuple[str, str]:
    return f"{name}: the learning rate is called learning_rate", f"{prefix}training.learning_rate"


def _tables(value: Any) -> list[Table]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
