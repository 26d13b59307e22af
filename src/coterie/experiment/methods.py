"""From tables to methods: stages of algorithms, each table's settings over those further out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import Field

from coterie.algorithms import ALGORITHMS, Algorithm
from coterie.algorithms.initialisation import initialised, own_init
from coterie.engine.training import Training
from coterie.errors import CoterieError, require
from coterie.experiment.schema import Section, Setting, Table, check, choose, parameters, saying, spell
from coterie.files import is_folder_name
from coterie.protocol import privacy_accountant
from coterie.protocol.participation import Participation
from coterie.protocol.personalise import Way
from coterie.protocol.privacy import Privacy
from coterie.protocol.stages import (
    Stage,
    Stages,
    check_clustered,
    check_personal,
    has_clusters,
    is_clustered,
    with_clusters,
)
from coterie.protocol.topology import Graph, Kind, Server, Topology
from coterie.validation import NONE

ROUNDS = 50  # where nothing is said, as in `coterie.run`
_FOLDER_NAMES = "up to 80 letters, digits, spaces and . _ + -, that can be the name of a folder"

AUTO, UNKNOWN = "auto", 2  # the number of clusters is to be chosen, and what stands there until it is

Count = Annotated[int, Field(ge=0)]
Clusters = Annotated[int, Field(ge=1)] | Literal["auto"]
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class PartTable:
    """What a stage may say; a method says it for all its stages, and the file for all methods."""

    rounds: Count | None = None
    init: str | None = None  # none: as the algorithm chooses, or random in a stage
    until: Literal["rounds", "separated"] | None = None
    n_init: Annotated[int, Field(ge=1)] | None = None
    clusters: Clusters | None = None
    personal: Way | None = None  # of methods with clusters: how clients make their models in the end
    algorithm: Table = field(default_factory=dict)
    training: Table = field(default_factory=dict)
    topology: Table = field(default_factory=dict)
    participation: Table = field(default_factory=dict)
    privacy: Table = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MethodTable(PartTable):
    label: str | None = None
    stage: tuple[Table, ...] = ()


Layers = Sequence[tuple[str, PartTable]]  # from the outermost in, each with the prefix of its keys


@dataclass(frozen=True)
class Origin:
    """Where a stage's settings were written, so that what is wrong with them can be named later."""

    algorithm: Section
    topology: Section
    participation: Section
    privacy: Section


@dataclass(frozen=True)
class Lone:
    """One algorithm, and the initialisation that makes stages of it."""

    stage: Stage
    init: str


@dataclass(frozen=True)
class Method:
    """One of the things compared: stages under a label."""

    label: str
    stages: Stages
    origins: tuple[Origin, ...] = field(compare=False, repr=False)
    auto: bool = False  # is the number of clusters still to be chosen?
    lone: Lone | None = None  # where it was not written as a list of stages

    def with_clusters(self, clusters: int) -> Method:
        """As if the number had been written; 1 cluster needs no initialisation."""
        if self.lone is None:
            return replace(self, stages=with_clusters(self.stages, clusters), auto=False)
        lone = replace(self.lone, stage=with_clusters(Stages((self.lone.stage,)), clusters)[0])
        stages = initialised(lone.stage, lone.init)
        return replace(self, stages=stages, origins=self.origins[:1] * len(stages), auto=False, lone=lone)

    def check(self, ids: Sequence[str], seed: int) -> None:
        """Refuse what could not run with these clients; graphs are drawn to see that they connect."""
        for stage, origin in zip(self.stages, self.origins, strict=True):
            with saying(origin.topology):
                stage.topology.check(len(ids))
                stage.topology.describe(ids, seed)
            with saying(origin.participation):
                stage.participation.check(len(ids), stage.topology.is_server)
            with saying(origin.algorithm):
                Stages((stage,)).check(len(ids))
        for pair, origin in zip(pairwise(self.stages), self.origins[1:], strict=True):
            try:
                Stages(pair).check(len(ids))
            except CoterieError as problem:
                raise CoterieError(f"{origin.algorithm.name('n_clusters')}: {problem}") from problem
        private = [o for s, o in zip(self.stages, self.origins, strict=True) if s.privacy is not None]
        if private:
            with saying(private[-1].privacy):
                privacy_accountant.check(self.stages)


def check_one_way(file: MethodTable, prefix: str = "") -> None:
    ways = [key for key in ("algorithm", "stage", "method") if hasattr(file, key)]
    given = [prefix + way for way in ways if getattr(file, way)]
    if len(given) != 1:
        allowed = ", ".join(prefix + way for way in ways)
        raise CoterieError(
            f"{' and '.join(given) or 'none'} of {allowed} is given; allowed is exactly one of them"
        )


def method_of(outer: Layers, prefix: str, table: Table, folder: Path) -> Method:
    part = MethodTable(**check(Section(prefix[:-1], table), parameters(MethodTable)).values)
    check_one_way(part, prefix)
    return stages_of([*outer, (prefix, part)], prefix, part, folder)


def stages_of(outer: Layers, prefix: str, part: MethodTable, folder: Path) -> Method:
    """The stages of one method, written as a list or as one algorithm."""
    layers: list[Layers] = [outer]
    if part.stage:
        layers = []
        for i, table in enumerate(part.stage):
            name = f"{prefix}stage.{i}"
            stage = PartTable(**check(Section(name, table), parameters(PartTable)).values)
            require(bool(stage.algorithm), f"{name}.algorithm", stage.algorithm, "a table with a name")
            layers.append([*outer, (f"{name}.", stage)])
    made = [_stage(one, folder, first=number == 0) for number, one in enumerate(layers)]
    label = part.label
    if label is None:
        label = "+".join(stage.algorithm.title() for stage, _ in made)
    check_folder_name(f"{prefix}label", label)
    origins = tuple(origin for _, origin in made)
    first, init = made[0][0], _init(made[0][0], layers, lone=not part.stage)
    with saying(Section(layers[0][-1][0][:-1])):
        begun = initialised(first, init)
    stages = Stages((*begun, *(stage for stage, _ in made[1:])))
    lone = None if part.stage else Lone(first, init)
    return Method(label, stages, (*origins[:1] * (len(begun) - 1), *origins), _is_auto(origins), lone)


def _init(first: Stage, layers: Sequence[Layers], lone: bool) -> str:
    """Of the first stage: a lone algorithm's is its own choice, but a list of stages is played as written."""
    for number, (name, later) in enumerate((one[-1] for one in layers[1:]), start=1):
        allowed = f"none in stage {number}, only in the first"
        require(later.init is None, f"{name}init", later.init, allowed)
    if not lone:
        prefix, around = layers[0][-2]
        allowed = f"none beside stages; {layers[0][-1][0]}init is that of the first"
        require(around.init is None, f"{prefix}init", around.init, allowed)
        return layers[0][-1][1].init or "random"
    given = [part.init for _, part in layers[0] if part.init is not None]
    return given[-1] if given else own_init(first)


def _is_auto(origins: Sequence[Origin]) -> bool:
    """Is the number of clusters to be chosen? All stages must agree on that."""
    sections = [origin.algorithm for origin in origins if "n_clusters" in origin.algorithm.values]
    auto = any(section.values["n_clusters"] == AUTO for section in sections)
    for section in sections if auto else ():
        given = section.values["n_clusters"]
        require(
            given == AUTO, section.name("n_clusters"), given, f"{AUTO!r}, as another stage of the method has"
        )
    return auto


def _stage(layers: Layers, folder: Path, first: bool) -> tuple[Stage, Origin]:
    """Each layer's settings over those of the layers around it, whose n_init are of the first stage alone."""
    rounds = [part.rounds for _, part in layers if part.rounds is not None]
    until = [part.until for _, part in layers if part.until is not None]
    n_init = [part.n_init for _, part in (layers if first else layers[-1:]) if part.n_init is not None]
    training, topology, participation = Section("training"), Section("topology"), Section("participation")
    privacy = Section("privacy")
    for prefix, part in layers:
        lengths = {"epochs", "steps"} if {"epochs", "steps"} & part.training.keys() else set()
        training = training.over(f"{prefix}training", part.training, replacing=lengths)
        old = topology.values if "kind" in part.topology else ()
        topology = topology.over(f"{prefix}topology", part.topology, replacing=old)
        participation = participation.over(f"{prefix}participation", part.participation)
        old = privacy.values if "mechanism" in part.privacy else ()
        privacy = privacy.over(f"{prefix}privacy", part.privacy, replacing=old)
    if "steps" in training.values:  # a length in steps takes the place of the one in epochs
        training.values.setdefault("epochs", "none")
    algorithm, kind = _algorithm(_clustered(layers))
    graph, origin = _topology(topology, folder)
    # what is said further out is for the methods that have clusters
    around = layers if has_clusters(type(kind)) else layers[-1:]
    personal: list[Way] = [part.personal for _, part in around if part.personal is not None]
    stage = Stage(
        algorithm=kind,
        rounds=rounds[-1] if rounds else ROUNDS,
        training=_make(Training, training),
        topology=graph,
        participation=_make(Participation, participation),
        until=until[-1] if until else "rounds",
        n_init=n_init[-1] if n_init else 1,
        privacy=_privacy(privacy),
        personal=personal[-1] if personal else "own",
    )
    with saying(Section(layers[-1][0][:-1])):
        check_personal(stage)
    return stage, Origin(algorithm, origin, participation, privacy)


def _make(kind: type[Made], section: Section) -> Made:
    section = check(section, parameters(kind))
    with saying(section):
        return kind(**section.values)


def _privacy(section: Section) -> Privacy | None:
    """None where nothing is said, or where "none" is."""
    if not section.values or section.values.get("mechanism") == NONE:
        return None
    return _make(Privacy, section)


def _clustered(layers: Layers) -> Section:
    """The algorithm's table, with the number of clusters from further out where it does not say."""
    prefix, part = layers[-1]
    section = Section(f"{prefix}algorithm", part.algorithm)
    kind = ALGORITHMS[choose(section, "name", ALGORITHMS)]
    if is_clustered(kind):
        said = [(outer, one.clusters) for outer, one in layers if one.clusters is not None]
        if said and "n_clusters" not in section.values:
            outer, number = said[-1]
            values, names = {**section.values, "n_clusters": number}, {"n_clusters": f"{outer}clusters"}
            section = replace(section, values=values, names=names)
    elif part.clusters is not None or part.algorithm.get("n_clusters") == AUTO:
        with saying(section):
            check_clustered(kind)
    return section


def _algorithm(section: Section) -> tuple[Section, Algorithm]:
    kind = ALGORITHMS[choose(section, "name", ALGORITHMS)]
    known = parameters(kind)
    if is_clustered(kind):
        known["n_clusters"] = Setting(int | Literal["auto"], known["n_clusters"].default)
    section = check(section.without("name"), known, also=("name",))
    auto = {"n_clusters": UNKNOWN} if section.values.get("n_clusters") == AUTO else {}
    with saying(section):
        return section, kind(**{**section.values, **auto})


def _topology(section: Section, folder: Path) -> tuple[Topology, Section]:
    section = replace(section, values={"kind": "server", **section.values})
    kind = choose(section, "kind", ("server", *get_args(Kind)))
    if kind == "server":
        for key in section.values.keys() - {"kind"}:
            raise CoterieError(
                f"{section.name(key)} is {section.values[key]!r}, but {section.name('kind')} is 'server'; "
                f"allowed is none at a server, or a kind among {', '.join(get_args(Kind))}"
            )
        return Server(), section
    section = check(replace(section, values={**section.values, "kind": kind}), parameters(Graph))
    if section.values["path"] is not None:
        section.values["path"] = str(folder / section.values["path"])
    with saying(section):
        return Graph(**section.values), section


def check_labels(methods: Sequence[Method]) -> None:
    seen: dict[str, int] = {}
    for i, method in enumerate(methods):
        first = seen.setdefault(method.label.lower(), i)  # some disks take A and a for the same folder
        allowed = f"a label other than that of method.{first}"
        require(first == i, f"method.{i}.label", method.label, allowed)


def check_folder_name(key: str, name: str) -> None:
    require(is_folder_name(name), key, name, _FOLDER_NAMES)


# as TOML again


def spelled_method(method: Method) -> Table:
    if method.lone is not None:
        stage = _spelled_stage(method.lone.stage, method.auto)
        return {"label": method.label, "init": method.lone.init, **stage}
    return {"label": method.label, "stage": [_spelled_stage(stage, method.auto) for stage in method.stages]}


def _spelled_stage(stage: Stage, auto: bool) -> Table:
    topology = {"kind": "server"} if isinstance(stage.topology, Server) else _spelled(stage.topology)
    algorithm = {"name": stage.algorithm.title(), **_spelled(stage.algorithm)}
    if auto and "n_clusters" in algorithm:
        algorithm["n_clusters"] = AUTO
    return {
        "rounds": stage.rounds,
        "until": stage.until,
        "n_init": stage.n_init,
        "algorithm": algorithm,
        "training": _spelled(stage.training),
        "topology": topology,
        "participation": _spelled(stage.participation),
        **({} if stage.privacy is None else {"privacy": _spelled(stage.privacy)}),
        **({} if stage.personal == "own" else {"personal": stage.personal}),
    }


def _spelled(made: Any) -> Table:
    known = parameters(type(made))
    return spell({key: getattr(made, key) for key in known}, known)
