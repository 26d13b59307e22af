"""Claims as comparisons of cells."""

from __future__ import annotations

import math

import pytest

from coterie.reproduction.claims import Claim, Comparison, check

CELLS = {
    ("a", "M", "accuracy"): 0.8,
    ("a", "N", "accuracy"): 0.7,
    ("b", "M", "accuracy"): 0.6,
    ("b", "N", "accuracy"): 0.65,
    ("a", "O", "accuracy"): 0.9,
    ("a", "P", "accuracy"): math.nan,
}


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("a / M / accuracy > a / N / accuracy", True),
        ("a / M / accuracy > a / N / accuracy + 0.2", False),
        ("a / M / accuracy < 0.9", True),
        ("b / M / accuracy > b / N / accuracy + -0.1", True),
        ("b / M / accuracy ~ b / N / accuracy ± 0.06", True),
        ("b / M / accuracy ~ b / N / accuracy ± 0.01", False),
        ("* / M / accuracy > * / N / accuracy", False),
        ("* / M / accuracy > 0.5", True),
        ("c / M / accuracy > 0.5", None),
        ("* / O / accuracy > 0.5", None),  # in a alone
        ("* / O / accuracy > 0.99", False),
        ("a / P / accuracy > 0.5", False),  # it diverged
        ("a / M / accuracy > 1e-3", True),
        ("a / M / accuracy > a / N / accuracy + 1e-3", True),
        ("a / M / accuracy − b / M / accuracy > a / N / accuracy − b / N / accuracy", True),  # 0.2 and 0.05
        ("a / M / accuracy − b / M / accuracy > a / N / accuracy − b / N / accuracy + 0.16", False),
        ("a / M / accuracy − c / M / accuracy > 0", None),
        ("* / M / accuracy < 1.2 × * / N / accuracy", True),
        ("* / M / accuracy < 1.1 × * / N / accuracy", False),
        ("0.5 × a / M / accuracy ~ 0.4 ± 1e-9", True),
    ],
)
def test_a_comparison_holds_or_not_or_is_open(text: str, held: bool | None) -> None:
    assert Comparison.of(text).check(CELLS, ["a", "b"])[0] is held


def test_a_claim_needs_all_its_comparisons() -> None:
    def outcome(*texts: str) -> str:
        return check(Claim("says", "where", texts), CELLS, ["a", "b"])[0]

    assert outcome("a / M / accuracy > 0.5", "b / M / accuracy > 0.5") == "held"
    assert outcome("a / M / accuracy > 0.5", "c / M / accuracy > 0.5") == "open"
    assert outcome("a / M / accuracy > 0.9", "c / M / accuracy > 0.5") == "not held"
    assert check(Claim("says", "where", (), "no data"), CELLS, ["a"]) == ("not testable", "no data")


def test_numbers_behind_a_claim_are_told() -> None:
    _, numbers = check(Claim("says", "where", ("* / M / accuracy > * / N / accuracy",)), CELLS, ["a", "b"])
    assert numbers == "accuracy 0.8 > 0.7, 0.6 > 0.65 (not)"
    several = ("a / M / accuracy > 0.5", "b / M / accuracy > 0.5")
    assert check(Claim("says", "where", several), CELLS, ["a"])[1] == "accuracy 0.8 > 0.5, 0.6 > 0.5"


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a / M > 0.5",
        "a / M / accuracy = 0.5",
        "a / M / accuracy ~ 0.5",
        "a / M > b < c",
        "a / M / x − b / M > 0",
        "b × a / M / x > 0",
        "a / M / x − b / M / x − c / M / x > 0",
    ],
)
def test_what_is_no_comparison_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"comparison|side"):
        Comparison.of(text)
