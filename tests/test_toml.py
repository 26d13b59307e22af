"""TOML that is written is read again."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import toml
from coterie.errors import CoterieError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = plain | st.lists(plain, max_size=3)
tables = st.recursive(
    st.dictionaries(texts, values, max_size=4),
    lambda inner: st.dictionaries(
        texts, values | inner | st.lists(inner, min_size=1, max_size=2), max_size=4
    ),
    max_leaves=8,
)


@given(tables)
def test_what_is_written_is_read_again(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml.write(table)) == table


def test_not_a_number_is_written_too() -> None:
    assert math.isnan(tomllib.loads(toml.write({"x": float("nan")}))["x"])


def test_what_toml_cannot_say_is_refused() -> None:
    with pytest.raises(CoterieError, match="cannot be kept in TOML"):
        toml.write({"when": tomllib.loads("x = 2020-01-01")["x"]})
