"""The meaning of a setting is read from the comment beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.experiment.field_docs import REQUIRED, Explained, explained


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
