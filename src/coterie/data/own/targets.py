"""What is to be predicted: labels from 0, or numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Task
from coterie.data.own.arrays import Array, floats
from coterie.errors import CoterieError, require

SPARSE = 100  # a label is a mistake if there are so many times more numbers up to it than labels


class Named(NamedTuple):
    where: str  # the client, for errors
    y: Array


class Targets(NamedTuple):
    task: Task
    n_outputs: int
    y: list[Tensor]  # labels (point,) or (point, time); numbers (point, output)
    classes: tuple[str, ...] = ()  # the words behind the labels, where they were words


def targets(given: Sequence[Named], task: Task | None) -> Targets:
    """Words and whole numbers are labels and other numbers are regressed on, unless the task is given."""
    require(task is None or task in get_args(Task), "task", task, ", ".join(map(repr, get_args(Task))))
    guessed = "regression" if any(y.dtype.kind == "f" for _, y in given) else "classification"
    if task is None:
        _check_one_kind(given)
    if (task or guessed) == "regression":
        return _numbers(given)
    numbered, words = _without_words(given)
    return _labels(numbered, task or "classification", guessed=task is None)._replace(classes=words)


def _check_one_kind(given: Sequence[Named]) -> None:
    """Floats of a few clients do not make a regression of everybody's labels, without being asked."""
    fractions = [g for g in given if g.y.dtype.kind == "f"]
    whole = [g for g in given if g.y.dtype.kind in "iub"]
    if fractions and whole:
        raise CoterieError(
            f"{fractions[0].where} has targets of type {fractions[0].y.dtype} and {whole[0].where} has whole numbers; "
            "whether they are labels or numbers is to be said: task = 'classification' or 'regression'"
        )


def _numbers(given: Sequence[Named]) -> Targets:
    for where, y in given:
        if y.dtype.kind == "U":
            raise CoterieError(f"{where}: targets are words; regression needs numbers for every client")
    outputs = math.prod(given[0].y.shape[1:])
    for where, y in given:
        if math.prod(y.shape[1:]) != outputs:
            raise CoterieError(
                f"{where} has {math.prod(y.shape[1:])} targets per point and {given[0].where} has {outputs}; "
                "all clients need the same number"
            )
    numbers = [torch.from_numpy(floats(y).reshape(len(y), outputs)) for _, y in given]
    return Targets("regression", outputs, numbers)


def _without_words(given: Sequence[Named]) -> tuple[list[Named], tuple[str, ...]]:
    """Words as whole numbers from 0, in sorted order; and the words."""
    words = [g for g in given if g.y.dtype.kind == "U"]
    if not words:
        return list(given), ()
    if len(words) < len(given):
        other = next(g for g in given if g.y.dtype.kind != "U")
        raise CoterieError(
            f"{other.where} has numbers as targets and {words[0].where} has words; all clients need the same kind"
        )
    vocabulary = np.unique(np.concatenate([y.ravel() for _, y in words]))
    return [Named(where, np.searchsorted(vocabulary, y)) for where, y in given], tuple(map(str, vocabulary))


def _labels(given: Sequence[Named], task: Task, guessed: bool) -> Targets:
    labels = []
    for where, y in given:
        if task == "classification" and y.ndim > 1:
            if len(y) and y[0].size != 1:
                raise CoterieError(
                    f"{where}: the shape of y is {y.shape}; allowed is a label is one value per point "
                    "(task='regression' predicts several numbers)"
                )
            y = y.reshape(len(y))
        whole = y.astype(np.float64) % 1 == 0 if y.dtype.kind == "f" else np.full(y.shape, True)
        bad = ~whole | (y < 0) | (y > np.iinfo(np.int64).max)
        if bad.any():
            point, value = int(np.argwhere(bad)[0][0]), y[bad][0].item()
            hint = " (task='regression' predicts numbers)" if guessed else ""
            raise CoterieError(
                f"{where}, point {point}: label {value}; labels are whole numbers from 0{hint}"
            )
        labels.append(torch.from_numpy(y.astype(np.int64)))
    outputs = max(int(y.max()) for y in labels if y.numel()) + 1
    if task == "classification" and outputs > SPARSE:
        _check_dense([where for where, _ in given], labels, outputs)
    return Targets(task, outputs, labels)


def _check_dense(where: Sequence[str], labels: Sequence[Tensor], outputs: int) -> None:
    """A label of a million makes a million outputs: that is a mistake, unless most labels up to it occur."""
    known = np.unique(np.concatenate([y.numpy().ravel() for y in labels]))
    if outputs <= SPARSE * len(known):
        return
    which = next(i for i, y in enumerate(labels) if y.numel() and int(y.max()) == outputs - 1)
    raise CoterieError(
        f"{where[which]}, point {int(labels[which].argmax())}: label {outputs - 1}, but there are {len(known)} labels "
        f"in all; labels are counted from 0, and {outputs} outputs would be needed (words need not be numbered, and "
        "task = 'regression' predicts numbers)"
    )
