"""A part of an item: some of its variants, methods and seeds, where not all are to be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coterie.errors import CoterieError
from coterie.reproduction.items import Item
from coterie.validation import nearest


@dataclass(frozen=True)
class Part:
    """Names may be patterns as of files (* ? [abc]). Without any names, or any seeds, it is all of them."""

    variants: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def has(self, variant: str, method: str, seed: int) -> bool:
        return (
            _matches(variant, self.variants)
            and _matches(method, self.methods)
            and (not self.seeds or seed in self.seeds)
        )

    def chosen(self, items: Sequence[Item], size: str) -> list[Item]:
        """The items that have a run of it; where methods are named, none that computes all its methods at once.

        Everything that is named must be in one of them.
        """
        if self == ALL:
            return [*items]
        if self.methods and not (items := [item for item in items if item.kind == "runs"]):
            raise CoterieError(
                "--method is given with items that compute all their methods at once; leave it out"
            )
        rows = {
            item.name: [(*row, s) for row in item.hashes(size) for s in item.seeds(size)] for item in items
        }
        _check("--variant", self.variants, {variant for each in rows.values() for variant, _, _ in each})
        _check("--method", self.methods, {method for each in rows.values() for _, method, _ in each})
        seeds = {seed for each in rows.values() for _, _, seed in each}
        if unknown := set(self.seeds) - seeds:
            raise CoterieError(
                f"--seeds has {min(unknown)}; allowed are {', '.join(map(str, sorted(seeds)))}"
            )
        found = [item for item in items if any(self.has(*row) for row in rows[item.name])]
        if not found:
            raise CoterieError("no run has such a variant, method and seed together")
        return found


ALL = Part()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _check(option: str, patterns: tuple[str, ...], known: set[str]) -> None:
    names = sorted(known - {""})  # an only variant has no name
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            few = f"; allowed are {', '.join(map(repr, names))}" if len(names) <= 40 else ""
            allowed = f"{nearest(pattern, names)}{few}" if names else ": there are none to choose from"
            raise CoterieError(f"{option} is {pattern!r}, which there is not{allowed}")
