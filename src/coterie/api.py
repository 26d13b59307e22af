"""From a model, data and an algorithm to a finished run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.algorithms.initialisation import Initialisation, as_stages
from coterie.backends.simulation import simulate
from coterie.data import from_arrays
from coterie.data.federation import Federation
from coterie.engine.compile.policy import Compile
from coterie.engine.model import LOSSES, Loss, as_device
from coterie.engine.rows import Build, Rows, factory
from coterie.engine.training import Training
from coterie.errors import CoterieError, require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.fit import Fit
from coterie.protocol.message import RoundContext
from coterie.protocol.participation import Participation
from coterie.protocol.personal import Personal
from coterie.protocol.personalise import Way
from coterie.protocol.privacy import Privacy
from coterie.protocol.result import Result
from coterie.protocol.stages import Stage, Stages
from coterie.protocol.topology import Topology
from coterie.runs.client_table import Kept
from coterie.runs.folder import RunFolder
from coterie.runs.onboarding import Recipe
from coterie.runs.play import check, described, play
from coterie.runs.recorder import Every, Watch
from coterie.runs.result import Run


def load(
    folder: Path | str,
    model: nn.Module | Build | None = None,
    *,
    algorithm: Algorithm | Stage | Sequence[Stage] | None = None,
    training: Training | None = None,
    loss: Loss | None = None,
    personal: Way | None = None,
    trust: bool = False,
) -> Run:
    """A finished run from its folder. Its model is made as its experiment.toml says, unless it is given.

    Where that model is code that you have not run before, it is refused unless you `trust` the folder.

    A run that was made in Python takes in new clients if it is given its algorithm, training, loss and `personal` too,
    as `coterie.run` was.
    """
    store, summary, tensors, ids = _finished(folder)
    in_python = "made" in store.settings()
    if model is None:
        if in_python:
            raise CoterieError(
                f"the run in {folder} was made in Python; give its model: coterie.load(folder, model)"
            )
        model = _model(store, summary, trust)
    build = factory(model)
    rows = Rows(build().to(tensors["centers"].dtype))
    if rows.width != tensors["centers"].shape[1]:
        raise CoterieError(
            f"the model has {rows.width} numbers and those in {folder} have {tensors['centers'].shape[1]}; "
            "it must be the model of that run"
        )
    records = store.records(summary["rounds"])
    store.check_rounds(range(summary["rounds"]))
    result = _result(store, tensors, len(ids), summary)
    stages = None
    if algorithm is not None:
        stages = as_stages(algorithm, summary["rounds"], training, personal=personal)
        if in_python:
            _check_same(store, stages)

    def recipe() -> Recipe:
        known = _stages_of_experiment(store) if stages is None else stages
        last, context = known[-1], RoundContext(**summary["context"])
        if loss is None and summary.get("own_loss"):
            raise CoterieError(
                f"the run in {folder} was made with a loss of its own; to take in a client, give it too: "
                "coterie.load(folder, model, algorithm=..., training=..., loss=...)"
            )
        measure = loss or LOSSES[summary["task"]]
        cpu, dtype = torch.device("cpu"), tensors["centers"].dtype
        return Recipe(build, measure, cpu, dtype, last.algorithm, last.training, context, last.personal)

    known = None if in_python and stages is None else recipe
    return Run(rows, ids, summary["task"], result, records, summary, Path(folder), known)


def _result(store: RunFolder, tensors: dict[str, Tensor], clients: int, summary: dict[str, Any]) -> Result:
    """What was known at the end of the run; older runs have no fit."""
    own = tensors["personal.rows"].expand(clients, -1, -1)  # one model for all is kept once
    kept = Kept.of(store, tensors, summary)
    parts = [tensors[name] for name in ("fit.losses", "fit.points") if name in tensors]
    return Result(
        tensors["centers"],
        kept.importance,
        Personal(own, tensors["personal.weights"], kept.way),
        Fit(*parts) if parts else None,
        kept.margin,
        kept.sizes,
        tensors.get("common"),
        tensors.get("prior"),
        scores=kept.scores,
    )


def _finished(folder: Path | str) -> tuple[RunFolder, dict[str, Any], dict[str, Tensor], tuple[str, ...]]:
    """A finished run's folder, with what is read there: its summary, its tensors and the ids of its clients."""
    store = RunFolder(Path(folder))
    below = sorted(path.parent.name for path in store.folder.glob("*/summary.json"))
    if below and not store.finished:
        raise CoterieError(f"{folder} holds the runs {', '.join(below)}; load one of these folders below it")
    summary, (tensors, ids) = store.summary(), store.result()
    if "centers" not in tensors:
        raise CoterieError(
            f"{folder} keeps a run's numbers and no models, as `coterie reproduce` leaves them"
        )
    return store, summary, tensors, ids


def _model(store: RunFolder, summary: Mapping[str, Any], trust: bool) -> Build:
    """As the experiment says; its data is read only for old runs, which did not keep the sizes."""
    from coterie.experiment.experiment import load_kept  # here, since pydantic comes with it
    from coterie.experiment.trust import check as check_trust

    experiment = load_kept(store.folder)
    check_trust(experiment, store.folder, trust, "--trust, or trust=True in Python")
    if "inputs" in summary:
        return experiment.factory_for(tuple(summary["inputs"]), summary["outputs"])
    return experiment.factory(experiment.federation())


def _stages_of_experiment(store: RunFolder) -> Stages:
    from coterie.experiment.experiment import load_kept

    return load_kept(store.folder).methods[0].stages


def _check_same(store: RunFolder, stages: Stages) -> None:
    """Is this what the run was made with? Its folder has it in words."""
    last = store.settings()["stages"][-1]
    for name in ("algorithm", "training"):
        given = getattr(stages[-1], name)
        if f"{name}={given!r}" not in last:
            raise CoterieError(
                f"{name} is {given!r}, but the last stage of the run in {store.folder} is {last}"
            )
    way = stages[-1].personal
    same = "personal=" not in last if way == "own" else f"personal={way!r}" in last
    if not same:
        found = re.search(r"personal='([^']*)'", last)
        made = found[1] if found else "own"
        raise CoterieError(
            f"personal is {way!r}, but the run in {store.folder} was made with personal={made!r}; give that"
        )


def run(
    model: nn.Module | Build,
    data: Federation | Sequence[Any] | Mapping[str, Any],
    algorithm: Algorithm | Stage | Sequence[Stage],
    *,
    rounds: int = 50,
    training: Training | None = None,
    topology: Topology | None = None,
    participation: Participation | None = None,
    privacy: Privacy | None = None,
    personal: Way | None = None,
    init: str | Initialisation | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    resume: bool = False,
    loss: Loss | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    chunk: int | None = None,
    compile: Compile = "auto",
    tf32: bool = False,
    evaluate_every: Every = "auto",
    checkpoint_every: int = 10,
    watch: Watch | None = None,
    experiment: str | None = None,
) -> Run:
    """Train `algorithm` on the clients of `data`.

    `model` is an nn.Module, its class, or a function that builds one; a module gives its shape and its frozen
    layers, while trained weights are drawn anew for every initialisation. `data` is a Federation, or one (x, y) per
    client. `init` is how its centers begin, a name or a function of `coterie.algorithms.initialisation`; None is
    the algorithm's own choice. `personal` is how clients make their models in the end: "own" as the algorithm does,
    "auto" as each of them chooses, or a way by its name; see docs/how-to/personal-models.md. With stages, all that
    comes after `algorithm` up to `init` is theirs. With `out` the run is kept in that folder, with `experiment`,
    the TOML that describes it, where there is one; `resume` goes on with what lies there. `compile` says whether
    training steps are compiled: "auto" does so where the work ahead pays for it. `tf32` lets a GPU multiply
    matrices faster and less exactly. Models are evaluated each `evaluate_every` rounds; at "auto" that is 10, or up
    to 100 where few clients train in a round.
    """
    stages = as_stages(algorithm, rounds, training, topology, participation, privacy, init, personal)
    check(seed, dtype, evaluate_every, checkpoint_every, compile)
    require(not resume or out is not None, "resume", resume, "true only with out, the folder of the run")
    federation = data if isinstance(data, Federation) else from_arrays(data)
    coordinator = simulate(
        factory(model),
        federation,
        stages,
        seed=seed,
        loss=loss,
        device=as_device(device),
        dtype=dtype,
        chunk=chunk,
        compile=compile,
        tf32=tf32,
    )
    if experiment is None:
        experiment = described(coordinator, len(federation.train.at), federation.fingerprint())
    return play(
        coordinator,
        federation.description,
        experiment=experiment,
        out=out,
        resume=resume,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        watch=watch,
    )
