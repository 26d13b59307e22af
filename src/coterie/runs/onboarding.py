"""A client that comes after the end: its importance, its model, and how sure that is.

A client's loss is that of the centers on its points. Where a client as a whole has a cluster, it is the mean loss of
its best center, and the margin is what the second best has more; where each point has one (FedEM, FedSoft, FedSPD),
both are the mean over points of the same. Whether it fits is told by the ranks of its points: see protocol/fit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from coterie.data.federation import Points, Task
from coterie.data.own.arrays import Array, Client, Pairs, pairs
from coterie.data.own.tables import TABLES, Columns, client_of, read_npz, read_table
from coterie.data.own.targets import Named, targets
from coterie.engine.model import LOSSES, FunctionalModel, Loss
from coterie.engine.probe import probe
from coterie.engine.rows import Build
from coterie.engine.training import Training
from coterie.errors import CoterieError
from coterie.files import make_folder, write_json, write_whole
from coterie.prng import id_keys
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.clients import Question
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.evaluation import best_of
from coterie.protocol.fit import FEWEST, RIVALS, of_center, own_center
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.personal import Personal
from coterie.protocol.personalise import NEWCOMER, Way, finish
from coterie.protocol.result import Result
from coterie.protocol.state import State
from coterie.runs.inputs import Inputs
from coterie.runs.models import PersonalModel, outputs_of, personal_model

Summary = Mapping[str, Any]  # of the run: summary.json
Ask = Callable[[Question, Messages], Messages | None]  # None: the clients are not to be asked this

NAMED = 5  # clients that a summary names
HALF = 0.5  # a cluster of which a client has less than this part of what it has most of is another one


@dataclass(frozen=True)
class Recipe:
    """What made a run's models, so that a new client is treated as the others were in the last round."""

    build: Build
    loss: Loss
    device: torch.device
    dtype: torch.dtype
    algorithm: Algorithm
    training: Training
    context: RoundContext
    personal: Way = "own"  # how the run's clients made their models

    @staticmethod
    def of(coordinator: Coordinator) -> Recipe:
        model, stage = coordinator.model, coordinator.stage
        return Recipe(
            build=model.build,
            loss=model.loss,
            device=model.device,
            dtype=model.dtype,
            algorithm=stage.algorithm,
            training=stage.training,
            context=coordinator.state.context,
            personal=stage.personal,
        )


@dataclass(frozen=True)
class Onboarded:
    """A new client: what it has of each cluster, its model, and how sure that is."""

    id: str
    points: int
    importance: tuple[float, ...]  # of each cluster
    losses: tuple[float, ...]  # of each center, the mean over its points; none where there are no centers
    loss: float | None  # of its best center, or the mean over points of the best center's
    margin: float | None  # how much more the second best has; None where there is no second
    worse: float | None  # the chance that a point of it is worse than 4 of the run's; 0.2: it is like them
    limit: float | None  # the highest such chance that fits; None where the run does not know
    model: PersonalModel = field(repr=False)  # called with inputs, it predicts
    personal: Personal = field(repr=False)  # the same as rows and weights

    @property
    def fits(self) -> bool | None:
        """False: it fits no cluster; None: it has too few points to tell, or the run does not know."""
        if self.worse is None or self.limit is None or self.points < FEWEST:
            return None
        return self.worse <= self.limit

    def verdict(self) -> str:
        """In words."""
        if self.worse is None or self.limit is None:
            return "whether it fits is not known: this run did not keep how well its own clients do"
        if self.points < FEWEST:
            return f"too few points to tell whether it fits: it has {self.points}, and {FEWEST} are needed"
        what = (
            f"a point of it has a higher loss than {RIVALS} points of the run's clients with a chance of "
            f"{self.worse:.3g}, and up to {self.limit:.3g} fits"
        )
        return f"it fits: {what}" if self.fits else f"it fits no cluster: {what}"

    def save(self, folder: Path) -> None:
        """personal.safetensors with rows and weights, then onboarded.json; each whole."""
        make_folder(folder)
        tensors = {"rows": self.personal.rows[0], "weights": self.personal.weights[0]}
        write_whole(
            folder / "personal.safetensors", save({n: t.contiguous().cpu() for n, t in tensors.items()})
        )
        kept = ("id", "points", "importance", "losses", "loss", "margin", "worse", "limit", "fits")
        write_json(folder / "onboarded.json", {name: getattr(self, name) for name in kept})


def ask_fit(coordinator: Coordinator, ask: Ask, centers: Tensor) -> Messages | None:
    """What clients say of the centers (cluster, width) that a new client would be offered; None: nothing."""
    if not coordinator.has_centers:
        return None
    found = ask("fit", coordinator.state.for_everyone().offer(centers=centers[None]))
    return found if found is not None and len(found) else None


def placed_elsewhere(ids: Sequence[str], importance: Tensor, answered: Messages) -> dict[str, Any]:
    """The clients that onboarding would give another cluster than the run did, by importance (client, cluster)."""
    mine = importance[answered.clients]
    there = mine.gather(1, answered.importance.argmax(1, keepdim=True))[:, 0]
    elsewhere = answered.clients[there < HALF * mine.max(1).values].tolist()
    return {"clients": len(elsewhere), "first": [ids[i] for i in elsewhere[:NAMED]]}


def onboard(summary: Summary, recipe: Recipe, result: Result, given: Client) -> Onboarded:
    """One client, alone in a cohort, with what the run has for all."""
    where, fit = f"client {given.id!r}", result.fit
    cohort = _cohort(summary, recipe, given, where)
    offer = _offer(recipe, result, cohort)
    losses = cohort.losses(offer.centers) if offer.fields else None
    if losses is not None and not losses.isfinite().all(0).any():  # one that diverged is nobody's choice
        raise CoterieError(
            f"{where}: the loss of the run's centers is not finite on its points; its numbers must be in the range of "
            "those that the run was trained on"
        )
    importance, personal = _onboarded(recipe, cohort, offer)
    if not personal.rows.isfinite().all():
        raise CoterieError(
            f"{where}: its model diverged in training; a run with a smaller learning_rate is needed"
        )
    loss = margin = worse = limit = None
    if losses is not None:
        best, second = best_of(cohort, losses, recipe.algorithm.soft)
        loss, margin = float(best), None if second is None else float(second)
    if losses is not None and fit is not None and fit.known:
        center = own_center(cohort, losses, recipe.algorithm.soft)
        worse, limit = fit.worse(of_center(losses, center), center), fit.limit(len(center))
    inputs, outputs = Inputs.of(summary), outputs_of(summary)
    model = personal_model(cohort.model.rows, personal.rows[0], personal.weights[0], inputs, outputs)
    return Onboarded(
        id=given.id,
        points=len(cohort.points.at),
        importance=tuple(importance[0].tolist()),
        losses=() if losses is None else tuple(cohort.means(losses)[0].tolist()),
        loss=loss,
        margin=margin,
        worse=worse,
        limit=limit,
        model=model,
        personal=personal,
    )


def _onboarded(recipe: Recipe, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
    """Whatever the way to its model, the algorithm says where it belongs."""
    importance, own = recipe.algorithm.onboard(cohort, offer)
    if recipe.personal == "own":
        return importance, own
    offer = Messages(offer.clients, {**offer.fields, NEWCOMER: importance})
    return importance, finish(recipe.personal, recipe.algorithm, cohort, offer)


def _cohort(summary: Summary, recipe: Recipe, given: Client, where: str) -> Cohort:
    """The new client, treated as the others were in the last round."""
    model = FunctionalModel(
        recipe.build,
        recipe.loss,
        device=recipe.device,
        dtype=recipe.dtype,
        seed=recipe.context.seed,
        normalise=summary.get("normalise"),
        augment=bool(summary.get("augment")),
    )
    task = summary["task"]
    points = _points(summary, given.train, where).to(model.device, model.dtype)
    known = points.y if task == "regression" else torch.zeros_like(points.y)  # labels are checked next
    probe(model, points.x[:4], known[:4])
    model.check_range(points.x)
    _check_labels(model, points, task, where)
    key = id_keys([given.id]).to(model.device)
    cohort = Cohort.whole(model, recipe.training, points, key, task, recipe.context.seed)
    return cohort.when(recipe.context)


def _offer(recipe: Recipe, result: Result, cohort: Cohort) -> Messages:
    """The centers, and what else clients choose by; nothing where the algorithm has none to offer."""
    centers = result.centers.to(cohort.at.device)
    newcomer = torch.ones(1, dtype=torch.bool, device=centers.device)
    state = State(centers[None], cohort.keys, cohort.model.rows, True, recipe.context, newcomer)
    has_centers = bool(recipe.algorithm.final_offer(recipe.algorithm.begin(state)).fields)
    if not has_centers:
        return state.offer()
    more = {"common": result.common, "prior": result.prior}
    shown = {name: t[None].to(cohort.at.device) for name, t in more.items() if t is not None}
    return state.offer(centers=state.centers, **shown)


# its data


def client(summary: Summary, x: Any, y: Any, id: str) -> Client:
    """From arrays."""
    return Client(id, pairs(x, y, f"client {id!r}", tokens=summary["task"] == "next-character"), None)


def read_client(summary: Summary, path: Path, columns: Columns) -> Client:
    """From a file; test points that it may hold are left alone."""
    kind = path.suffix.lower()
    if kind not in (".npz", *TABLES) or not path.is_file():
        raise CoterieError(
            f"'{path}' is no file of a client; allowed is a .npz, .csv or .parquet that exists"
        )
    if kind == ".npz":
        return read_npz(path, columns.tokens)
    table, features = read_table(path), summary.get("features")
    table.columns = table.columns.map(str)
    if features:
        missing = [name for name in (*features, columns.target) if name not in table.columns]
        if missing:
            raise CoterieError(
                f"{path} has no column {missing[0]!r}; it needs those that the run's clients had: "
                f"{', '.join((*features, columns.target))}"
            )
        side = [columns.split] if columns.split in table.columns else []
        table = table[[*features, columns.target, *side]]
    return client_of(table, columns.features(table, str(path)), columns, path.stem, str(path))


def _points(summary: Summary, given: Pairs, where: str) -> Points:
    """Checked against what the run knows of its own clients."""
    if not len(given.x):
        raise CoterieError(f"{where} has no points; at least one is needed")
    own, theirs = list(given.x.shape[1:]), summary.get("inputs")
    if theirs is not None and own != theirs:
        raise CoterieError(
            f"{where} has {_shape(own)} and the clients of the run have {_shape(theirs)}; it needs the same"
        )
    y = _numbered(given.y, summary["classes"], where) if summary["task"] != "regression" else given.y
    x = Inputs.of(summary).like_theirs(given.x, where)
    return Points.of([(x, targets([Named(where, y)], summary["task"]).y[0])])


def _numbered(y: Array, classes: Sequence[str], where: str) -> Array:
    """Words as the run's labels."""
    if (y.dtype.kind == "U") != bool(classes):
        theirs = f"words: {', '.join(classes)}" if classes else "whole numbers"
        raise CoterieError(f"{where}: the labels are of another kind than the run's, which are {theirs}")
    if not classes:
        return y
    unknown = y[~np.isin(y, classes)]
    if len(unknown):
        raise CoterieError(f"{where}: label {str(unknown[0])!r}; the run's labels are {', '.join(classes)}")
    return np.searchsorted(np.array(classes), y)


def _check_labels(model: FunctionalModel, points: Points, task: Task, where: str) -> None:
    """Has the model an output for every label (and every character that it is given)?"""
    if task == "regression" or model.loss is not LOSSES[task]:
        return
    with torch.no_grad():
        width = model.outputs(model.initial("client"), points.x[:1]).shape[-1]
    highest = int(points.y.max())
    if task == "next-character":
        highest = max(highest, int(points.x.max()))
    if highest >= width:
        raise CoterieError(
            f"{where}: label {highest}; the run's model has outputs for the labels 0 to {width - 1}"
        )


def _shape(shape: Sequence[int]) -> str:
    return f"{shape[0]} features" if len(shape) == 1 else f"inputs of shape {tuple(shape)}"
