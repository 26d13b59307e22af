"""LEAF's json: data by user, in files below `train` and `test` (as LEAF's preprocess.sh leaves them)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.data.sources.layout import Wanted
from coterie.data.sources.source import Source
from coterie.data.sources.text import tokens
from coterie.errors import CoterieError

User = dict[str, list[Any]]  # x, y
Pairs = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Leaf:
    """`NAME/data/train/*.json` and `NAME/data/test/*.json`, with or without `data`."""

    name: str
    points: Callable[[User], Pairs]  # of one user

    def wanted(self, folder: Path) -> list[Wanted]:
        here = folder / self.name
        return [(here / "data" / side, here / side) for side in ("train", "test")]

    def read(self, files: list[Path]) -> Source:
        train, test = (_users(folder) for folder in files)
        owners = sorted(train.keys() | test.keys())
        number = {user: i for i, user in enumerate(owners)}
        sides = [
            self._side(folder, users, number) for folder, users in zip(files, (train, test), strict=True)
        ]
        (x, y, owner), (x_test, y_test, owner_test) = sides
        return Source("", x, y, x_test, y_test, 0, (), owner, owner_test, tuple(owners))

    def _side(
        self, folder: Path, users: dict[str, User], number: dict[str, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, y, owner = [], [], []
        for user, held in users.items():
            if isinstance(held, dict) and held.get("x") == []:
                continue  # it has nothing on this side
            try:
                inputs, targets = self.points(held)
            except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as problem:
                raise CoterieError(
                    f"{folder}: the data of user {user!r} cannot be read ({problem})"
                ) from problem
            if len(inputs) != len(targets):
                raise CoterieError(
                    f"{folder}: user {user!r} has {len(inputs)} inputs and {len(targets)} targets"
                )
            x.append(inputs)
            y.append(targets)
            owner.append(torch.full((len(targets),), number[user]))
        if not x:
            raise CoterieError(f"{folder}: no user has any points; at least one is needed")
        return torch.cat(x), torch.cat(y), torch.cat(owner)


def letters(user: User) -> Pairs:
    """FEMNIST: 784 numbers from 0 to 1 an image, kept as bytes."""
    x = np.asarray(user["x"], np.float64).reshape(len(user["x"]), 1, 28, 28)
    if len(x) and not (x.min() >= 0 and x.max() <= 1):
        raise ValueError("a pixel is outside of 0 to 1")
    return torch.from_numpy((x * 255).round().astype(np.uint8)), torch.tensor(user["y"], dtype=torch.int64)


def characters(user: User) -> Pairs:
    """Shakespeare: 80 characters, and the one after them; here each has the next one as its target."""
    if not all(len(after) == 1 for after in user["y"]):
        raise ValueError("a target is not one character")
    text = torch.stack([tokens(x + after) for x, after in zip(user["x"], user["y"], strict=True)])
    return text[:, :-1], text[:, 1:]


def _users(folder: Path) -> dict[str, User]:
    """All users of all files."""
    users: dict[str, User] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            users.update(json.loads(file.read_text(encoding="utf-8"))["user_data"])
        except (ValueError, TypeError, KeyError) as problem:
            size = file.stat().st_size
            raise CoterieError(
                f"{file} ({size} bytes) is not a whole json file of LEAF with `user_data`"
            ) from problem
    if not users:
        raise CoterieError(f"{folder} has no .json file with users; LEAF's preprocess.sh writes them there")
    return users
