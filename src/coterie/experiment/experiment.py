"""An experiment: TOML, to checked settings, to objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from coterie import models, toml
from coterie.backends.processes import here
from coterie.backends.simulation import Simulation
from coterie.data.federation import Federation
from coterie.engine.compile.policy import Compile
from coterie.engine.rows import Build
from coterie.errors import CoterieError, require
from coterie.experiment.data_section import Seed, data_section, federation_of, spelled_data
from coterie.experiment.methods import (
    Count,
    Layers,
    Method,
    MethodTable,
    check_folder_name,
    check_labels,
    check_one_way,
    method_of,
    spelled_method,
    stages_of,
)
from coterie.experiment.other_names import refuse_other_names
from coterie.experiment.schema import (
    REQUIRED,
    Section,
    Setting,
    Table,
    check,
    choose,
    parameters,
    saying,
    spell,
)
from coterie.files import make_folder, write_whole
from coterie.model_selection.choice import Choice, Choosing
from coterie.model_selection.search import Watch as WatchChoosing
from coterie.model_selection.search import choose_clusters, hold_out
from coterie.protocol.stages import Progress
from coterie.runs.play import play
from coterie.runs.recorder import Every, Watch
from coterie.runs.result import Run


@dataclass(frozen=True, kw_only=True)
class _File(MethodTable):
    name: str | None = None
    seed: Seed = 0
    seeds: tuple[Seed, ...] = ()  # in place of one: every method is run with each
    held_out: Annotated[float, Field(ge=0, lt=1)] = (
        0.0  # of training points, to evaluate on in place of test points
    )
    evaluate_every: Count | Literal["auto"] = "auto"
    checkpoint_every: Annotated[int, Field(ge=1)] = 10
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = (
        None  # of the CPU; for small models 1 is fastest; none: as torch decides
    )
    compile: Literal["auto"] | bool = "auto"  # training steps: "auto" where the work ahead pays for it
    tf32: bool = False  # let a GPU multiply matrices faster and less exactly
    data: Table
    model: Table | str
    choosing: Table = field(default_factory=dict)
    method: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """What is to be run, with every setting known."""

    name: str
    seed: int
    evaluate_every: Every
    checkpoint_every: int
    dtype: str
    device: str
    threads: int | None
    compile: Compile
    tf32: bool
    data: Table  # with "source"; "seed" is None where it follows the experiment's
    model: Table  # with "name"
    methods: tuple[Method, ...]
    several: bool  # was it written as a list of methods?
    choosing: Choosing = field(default_factory=Choosing)  # how, where a number of clusters is "auto"
    seeds: tuple[int, ...] = ()  # if it is to be run with several
    held_out: float = 0.0

    @property
    def auto(self) -> bool:
        """Is a number of clusters still to be chosen?"""
        return any(method.auto for method in self.methods)

    def only(self, method: Method) -> Experiment:
        return replace(self, methods=(method,), several=False)

    def with_seed(self, seed: int) -> Experiment:
        """One of the runs with several seeds."""
        return replace(self, seed=seed, seeds=())

    def single(self) -> Experiment:
        """For what is done with one seed."""
        require(not self.seeds, "seeds", list(self.seeds), "one seed here, such as --seed 0")
        return self

    def folder_of(self, method: Method, folder: Path) -> Path:
        """A single method is kept in the run's folder itself, each of several in a folder below it."""
        return folder / method.label if self.several else folder

    def resolved(self) -> str:
        """TOML with every setting spelled out, which loads as the same experiment."""
        plain = (
            "name",
            "seed",
            "evaluate_every",
            "checkpoint_every",
            "dtype",
            "device",
            "threads",
            "compile",
            "tf32",
        )
        table = spell({key: getattr(self, key) for key in plain}, parameters(_File))
        if self.seeds:
            table["seeds"] = list(self.seeds)
            del table["seed"]
        if self.held_out:
            table["held_out"] = self.held_out
        table["data"] = spelled_data(self.data)
        table["model"] = spell(self.model, dict.fromkeys(self.model, Setting(Any, None)))
        if self.auto:
            table["choosing"] = asdict(self.choosing)
        methods = [spelled_method(method) for method in self.methods]
        return toml.write({**table, **({"method": methods} if self.several else methods[0])})

    def federation(self) -> Federation:
        made = federation_of(self.data, self.seed)
        return hold_out(made, self.held_out, self.seed) if self.held_out else made

    def factory(self, federation: Federation) -> Build:
        """What makes a fresh model, sized for the data."""
        return self.factory_for(tuple(federation.train.x.shape[1:]), federation.n_outputs)

    def factory_for(self, shape: tuple[int, ...], outputs: int) -> Build:
        """The same, where the data itself is not at hand."""
        settings = {key: value for key, value in self.model.items() if key != "name"}
        with saying(Section("model", self.model)):
            return models.build(self.model["name"], shape, outputs, **settings)

    def prepare(self) -> Prepared:
        """Everything made and checked; nothing is written yet."""
        federation = self.federation()
        here().check(len(federation))
        for method in self.methods:
            method.check(federation.ids, self.seed)
        cuda = self.device != "cuda" or torch.cuda.is_available()
        require(cuda, "device", self.device, "'cpu' or 'auto', as this machine has no CUDA device")
        if self.auto:
            with saying(Section("choosing")):
                self.choosing.numbers(len(federation))
        with saying(Section("model", self.model)), _threads(self.threads):
            simulation = self._simulation(federation)
        for method in self.methods:
            simulation.check_memory(method.stages)
        return Prepared(self, federation, simulation)

    def _simulation(self, federation: Federation) -> Simulation:
        """The model and the data, tried together once for all methods."""
        device = None if self.device == "auto" else torch.device(self.device)
        return Simulation(
            self.factory(federation),
            federation,
            seed=self.seed,
            device=device,
            dtype=getattr(torch, self.dtype),
            compile=self.compile,
            tf32=self.tf32,
        )


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data and its model, ready to run."""

    experiment: Experiment
    federation: Federation
    simulation: Simulation

    @cached_property
    def fingerprint(self) -> str:
        """Of the clients' data."""
        return self.federation.fingerprint()

    def play(
        self,
        method: Method,
        out: Path,
        *,
        resume: bool = False,
        watch: Watch | None = None,
        more_rounds: int | None = None,
        models: bool = True,
    ) -> Run:
        """Run one method in its folder. `more_rounds` are to be played with such steps besides its own.

        None: those of the methods after it. Without `models` the folder keeps the run's numbers alone.
        """
        if method.auto:
            raise CoterieError(f"{method.label}: how many clusters is 'auto'; choose a number first")
        place = [one.label for one in self.experiment.methods].index(method.label)
        if more_rounds is None:
            more_rounds = sum(Progress(one.stages).planned for one in self.experiment.methods[place + 1 :])
        self.simulation.more_rounds = more_rounds
        with _threads(self.experiment.threads):
            return play(
                self.simulation.coordinator(method.stages),
                self.federation.description,
                experiment=self.experiment.only(method).resolved(),
                data=self.fingerprint,
                out=out,
                resume=resume,
                evaluate_every=self.experiment.evaluate_every,
                checkpoint_every=self.experiment.checkpoint_every,
                watch=watch,
                models=models,
            )

    def choose(self, method: Method, out: Path, watch: WatchChoosing | None = None) -> Choice:
        """How many clusters a method should have; what was tried is kept in the folder."""
        model = self.simulation.model
        with _threads(self.experiment.threads), saying(Section("choosing")):
            return choose_clusters(
                model.build,
                self.federation,
                method.stages,
                choosing=self.experiment.choosing,
                seed=self.experiment.seed,
                out=out,
                device=model.device,
                dtype=model.dtype,
                watch=watch,
                experiment=self.experiment.only(method.with_clusters(1)).resolved(),
            )

    def resolve_auto(self, folder: Path, choose: Callable[[Method, Path], int]) -> Prepared:
        """The same with numbers of clusters in place of "auto", which are written to the run's folder.

        `choose` gives the number for a method, whose own folder keeps what was tried.
        """
        asked = self.experiment
        if not asked.auto:
            return self
        methods = []
        for method in asked.methods:
            if method.auto:
                method = method.with_clusters(choose(method, asked.folder_of(method, folder)))
            methods.append(method)
        resolved = replace(asked, methods=tuple(methods))
        here().once(lambda: _write(resolved, folder))
        return replace(self, experiment=resolved)


def _write(resolved: Experiment, folder: Path) -> None:
    if not resolved.several:
        make_folder(folder / "clients")  # as in a run that was begun
    write_whole(folder / "experiment.toml", toml.sealed(resolved.resolved()).encode())


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(number or before)
        yield
    finally:
        torch.set_num_threads(before)


def load(
    path: Path | str, overrides: Iterable[str] = (), seed: int | None = None, seeds: Sequence[int] = ()
) -> Experiment:
    """The experiment in a file, with changes such as "algorithm.pull=0.5"."""
    return parse(*read(path, overrides, seed, seeds))


def load_kept(folder: Path) -> Experiment:
    """The experiment of a run's folder, which must be as it was written."""
    toml.load_kept(folder / "experiment.toml")
    return load(folder / "experiment.toml")


def read(
    path: Path | str, overrides: Iterable[str] = (), seed: int | None = None, seeds: Sequence[int] = ()
) -> tuple[Table, str, Path]:
    """The file as a table, the name that it gives an experiment, and the folder that it lies in."""
    path = Path(path)
    table = toml.load(path)
    toml.change(table, overrides)
    if seed is not None:
        table["seed"] = seed
        table.pop("seeds", None)
    if seeds:
        table["seeds"] = list(seeds)
        table.pop("seed", None)
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", path.stem).strip(".-") or "experiment"
    return table, plain[:80], path.parent


def parse(table: Table, name: str = "experiment", folder: Path | str = ".") -> Experiment:
    """The experiment in a table; its relative paths are looked for in `folder`."""
    refuse_other_names(table)
    file = _File(**check(Section("", table), parameters(_File)).values)
    check_one_way(file)
    if file.seeds:
        require("seed" not in table, "seeds", list(file.seeds), "none beside seed: one of the two")
        require(len(set(file.seeds)) == len(file.seeds), "seeds", list(file.seeds), "each seed once")
    folder = Path(folder).absolute()
    outer: Layers = [("", file)]
    if file.method:
        methods = tuple(method_of(outer, f"method.{i}.", one, folder) for i, one in enumerate(file.method))
    else:
        methods = (stages_of(outer, "", file, folder),)
    check_labels(methods)
    name = file.name if file.name is not None else name
    check_folder_name("name", name)
    return Experiment(
        name=name,
        seed=file.seed,
        evaluate_every=file.evaluate_every,
        checkpoint_every=file.checkpoint_every,
        dtype=file.dtype,
        device=file.device,
        threads=file.threads,
        compile=file.compile,
        tf32=file.tf32,
        data=data_section(Section("data", file.data), folder),
        model=_model(
            Section("model", {"name": file.model} if isinstance(file.model, str) else file.model), folder
        ),
        methods=methods,
        several=bool(file.method),
        choosing=_choosing(Section("choosing", file.choosing)),
        seeds=file.seeds,
        held_out=file.held_out,
    )


def _choosing(section: Section) -> Choosing:
    section = check(section, parameters(Choosing))
    with saying(section):
        return Choosing(**section.values)


def _model(section: Section, folder: Path) -> Table:
    name = section.values.get("name")
    if (
        isinstance(name, str) and ":" in name
    ):  # the user's own, whose settings are checked when it is imported
        return {"folder": str(folder), **section.values}
    name = choose(section, "name", models.MODELS)
    known = {key: one for key, one in parameters(models.MODELS[name]).items() if one.default is not REQUIRED}
    known["init"] = parameters(models.build)["init"]
    return {"name": name, **check(section.without("name"), known, also=("name",)).values}
