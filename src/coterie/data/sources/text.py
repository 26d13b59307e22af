"""Text as sequences of characters, each to be predicted from those before it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from coterie.data.sources.source import Source
from coterie.errors import CoterieError

# LEAF's 80 characters of Shakespeare; any other counts as a space
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters of a sequence, as in LEAF
TEST_SHARE = 0.2  # of a role's sequences, the last ones, as in LEAF

_NUMBER = np.full(0x110000, CHARACTERS.index(" "), np.int64)  # of every code point
_NUMBER[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))


def tokens(text: str) -> Tensor:
    """(time,) the numbers of its characters."""
    return torch.from_numpy(_NUMBER[np.frombuffer(text.encode("utf-32-le"), np.uint32)])


def by_role(texts: Mapping[str, str], length: int = LENGTH) -> Source:
    """All that each role says, cut into sequences; roles too short for one of each side are left out."""
    sides: dict[str, tuple[Tensor, int]] = {}
    for role, text in texts.items():
        said = tokens(text)
        n = (len(said) - 1) // length
        if n >= 2:
            sides[role] = said, n
    if not sides:
        raise CoterieError(f"no role says as much as {2 * length + 1} characters; at least one must")
    x, y, owner, testing = [], [], [], []
    for i, (said, n) in enumerate(sides.values()):
        x.append(said[: n * length].view(n, length))
        y.append(said[1 : n * length + 1].view(n, length))
        owner.append(torch.full((n,), i))
        testing.append(torch.arange(n) >= n - max(1, round(TEST_SHARE * n)))
    inputs, targets, owners, test = torch.cat(x), torch.cat(y), torch.cat(owner), torch.cat(testing)
    return Source(
        "",
        *(inputs[~test], targets[~test], inputs[test], targets[test]),
        n_classes=len(CHARACTERS),
        classes=tuple(CHARACTERS),
        owner_train=owners[~test],
        owner_test=owners[test],
        owners=tuple(sides),
    )
