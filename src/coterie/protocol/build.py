"""From a model and data to what answers questions: the model as a function, the clients as a cohort, a peer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from coterie.data.federation import Federation, Points, Task
from coterie.engine.model import LOSSES, FunctionalModel, Loss, first_line
from coterie.engine.probe import probe
from coterie.engine.rows import Build
from coterie.engine.scores import Outputs
from coterie.engine.training import Training
from coterie.errors import CoterieError
from coterie.prng import id_keys
from coterie.protocol.client_state import ClientState
from coterie.protocol.cohort import Cohort
from coterie.protocol.peer import Peer
from coterie.protocol.personal import Personal
from coterie.protocol.stages import Stages


def server_model(build: Build, task: Task, *, loss: Loss | None = None, **how: Any) -> FunctionalModel:
    """The model for a server that has no data: it makes the first centers and knows what a row holds."""
    return FunctionalModel(build, loss or LOSSES[task], **how)


def functional_model(
    build: Build, data: Federation, *, loss: Loss | None = None, **how: Any
) -> FunctionalModel:
    """The model, tried on some of the data; the settings are those of `FunctionalModel`."""
    model = FunctionalModel(
        build, loss or LOSSES[data.task], normalise=data.normalise, augment=data.augment, **how
    )
    train = data.train
    y = train.y[:4]
    classes = 0 if data.task == "regression" or model.loss is not LOSSES[data.task] else data.n_outputs
    probe(model, train.x[train.at[:4]], y.to(model.dtype) if y.is_floating_point() else y, classes)
    for points in (train, data.test):
        if points is not None:
            model.check_range(points.x)
    model.meaning = Outputs(data.task, data.n_outputs, own_loss=model.loss is not LOSSES[data.task])
    _try_evaluation(model, data)
    return model


def _try_evaluation(model: FunctionalModel, data: Federation) -> None:
    """Score random models and their mixtures on a few points and the highest label, as each evaluation will."""
    y = data.train.y
    some = torch.cat([torch.arange(min(4, len(y))), y.reshape(len(y), -1).max(1).values.argmax()[None]])
    points = Points.of([(data.train.inputs(some), y[some])] * 2)
    cohort = Cohort.whole(model, Training(), points, torch.arange(2), data.task, model.seed)
    rows = torch.stack([model.initial("probe 0"), model.initial("probe 1")]).expand(2, -1, -1)
    try:
        for several in (rows[:, :1], rows):
            cohort.score(Personal(several, several.new_ones(several.shape[:2])))
    except Exception as problem:
        raise CoterieError(
            f"the model cannot be evaluated on this data: on inputs of shape {tuple(points.x.shape)} and targets of "
            f"shape {tuple(points.y.shape)}, its scores say: {first_line(problem)}"
        ) from problem


def cohort_of(model: FunctionalModel, data: Federation, seed: int) -> Cohort:
    """All clients of the data, with their held-out points; how they train is said as a stage begins."""
    whole = Cohort.whole(model, Training(), data.train, id_keys(data.ids), data.task, seed)
    test = None if data.test is None else data.test.to(model.device, model.dtype, model.integers)
    return replace(whole, test=test)


def peer_of(cohort: Cohort, client: int, stages: Stages) -> Peer:
    """One client of a cohort, alone in a cohort of its own."""
    at = torch.tensor([client], device=cohort.at.device)
    own, test = cohort.take(at), None if cohort.test is None else cohort.test.take(at)
    alone = replace(own, at=torch.zeros_like(at), client_state=ClientState(1), test=test)
    return Peer(alone, stages)
