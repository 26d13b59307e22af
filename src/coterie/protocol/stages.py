"""What is to be played: stages one after another, and where in them a run is."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Literal

from coterie.engine.training import Training
from coterie.errors import CoterieError, SettingError, require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.message import RoundContext
from coterie.protocol.participation import Participation
from coterie.protocol.personalise import Way, chosen_after
from coterie.protocol.privacy import Privacy
from coterie.protocol.topology import Server, Topology
from coterie.validation import Checked


@dataclass(frozen=True)
class Stage(Checked):
    """Some rounds of one algorithm. The next stage begins at its centers."""

    algorithm: Algorithm
    rounds: int  # how many, or with until = "separated" the most
    training: Training = field(default_factory=Training)
    topology: Topology = field(default_factory=Server)
    participation: Participation = field(default_factory=Participation)
    privacy: Privacy | None = None
    until: Literal["rounds", "separated"] = "rounds"  # "separated": it ends once the centers are
    n_init: int = (
        1  # from so many random initialisations, of which the one with the least training loss is kept
    )

    personal: Way = "own"  # how clients make their models in the end; see protocol/personalise.py

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= 0, "rounds", self.rounds, "0 or more")
        require(self.n_init >= 1, "n_init", self.n_init, "1 or more")
        require(self.rounds > 0 or self.n_init == 1, "n_init", self.n_init, "1 where no round is played")
        server = self.n_init == 1 or self.topology.is_server
        require(server, "n_init", self.n_init, "1 over a graph, where nobody could compare them")
        self._check_private()

    def _check_private(self) -> None:
        """Whatever clients send beside what the algorithm has them send has no noise on it."""
        if self.privacy is None:
            return
        if self.algorithm.not_private:
            says = f"is given, but {self.algorithm.title()} has {self.algorithm.not_private}"
            raise SettingError("privacy", f"{says}; allowed is none with it, or another algorithm or init")
        allowed = "with privacy, which covers what the algorithm has clients send and no more"
        require(self.until == "rounds", "until", self.until, f"'rounds' {allowed}")
        require(self.n_init == 1, "n_init", self.n_init, f"1 {allowed}")
        require(self.personal != "auto", "personal", self.personal, f"another than 'auto' {allowed}")
        select = self.participation.select
        require(select == "uniform", "participation.select", select, f"'uniform' {allowed}")

    def __repr__(self) -> str:
        """Without `personal` where it is "own": noise and folders of runs that do not have it stay as they are."""
        shown = [f.name for f in fields(self) if f.name != "personal" or self.personal != "own"]
        return f"Stage({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def has_final_phase(self) -> bool:
        """Is the model at the end another than the one in use before?"""
        return self.personal != "own" or self.algorithm.has_final_phase()

    def then(self, following: Stage) -> Stages:
        return Stages((self, following))


class Stages(tuple[Stage, ...]):
    """Stages one after another."""

    def hold_out(self, context: RoundContext) -> bool:
        """Do clients train without the points by which they will choose their models?"""
        last = self[-1]
        chosen = context.stage == len(self) - 1 and context.round >= chosen_after(last.rounds)
        return last.personal == "auto" and not chosen

    def then(self, following: Stage) -> Stages:
        return Stages((*self, following))

    def check(self, n_clients: int) -> None:
        if not self:
            raise CoterieError("there is no stage; at least one algorithm with its rounds is needed")
        for number, stage in enumerate(self):
            if not isinstance(stage, Stage):
                raise CoterieError(f"a stage is {stage!r}; allowed is a Stage, an algorithm with its rounds")
            stage.topology.check(n_clients)
            stage.algorithm.check(n_clients, stage.topology)
            stage.participation.check(n_clients, stage.topology.is_server)
            first = number == 0 or stage.n_init == 1
            require(first, "n_init", stage.n_init, "1 in a stage that starts from the centers of another")
        if len(self) > 1 and not all(stage.rounds for stage in self):
            raise CoterieError("a stage has 0 rounds; each of several stages needs 1 or more")
        for before, after in pairwise(self):
            _check_pair(before.algorithm, after.algorithm)
        check_personal(self[-1])


def _check_pair(before: Algorithm, after: Algorithm) -> None:
    """Can the second begin at the centers of the first? From one model any number of centers can begin."""
    if before.last_only:
        raise CoterieError(f"{before.title()} finds the number of clusters; no stage can follow it")
    left, wanted = before.clusters(), after.clusters()
    if left == 1:
        return
    if after.first_only:
        raise CoterieError(
            f"{after.title()} begins at one common model; it must be the first stage, or follow one of one model"
        )
    if left != wanted:
        raise CoterieError(
            f"{before.title()} leaves {left} centers but {after.title()}, which is to start from them, has "
            f"n_clusters = {wanted}; the two must agree"
        )


def check_personal(last: Stage) -> None:
    """Refuse a choice among the centers of an algorithm that has none."""
    kind = type(last.algorithm)
    allowed = f"'own' for {kind.title()}, which has no clusters"
    require(last.personal == "own" or has_clusters(kind), "personal", last.personal, allowed)


def with_clusters(stages: Stages, clusters: int) -> Stages:
    """The same method with so many clusters, in every stage that has any."""
    return Stages(
        replace(stage, algorithm=replace(stage.algorithm, n_clusters=clusters))  # type: ignore[call-arg]
        if is_clustered(type(stage.algorithm))
        else stage
        for stage in stages
    )


def check_clustered(kind: type[Algorithm]) -> None:
    """Refuse an algorithm that has no number of clusters."""
    if kind.last_only:
        raise CoterieError(f"{kind.title()} finds the number of clusters itself; run it without one")
    if not is_clustered(kind):
        raise CoterieError(
            f"{kind.title()} has no number of clusters; allowed is an algorithm with n_clusters"
        )


def is_clustered(kind: type[Algorithm]) -> bool:
    return "n_clusters" in {own.name for own in fields(kind)}


def has_clusters(kind: type[Algorithm]) -> bool:
    """Also where it finds their number itself; models that vote are none."""
    return (is_clustered(kind) or kind.last_only) and not kind.votes


@dataclass
class Progress:
    """Where in its stages a run is. A stage is played once, or `n_init` times; each time is an attempt."""

    stages: Stages
    stage: int = 0
    attempt: int = 0  # of n_init, from 0
    round: int = 0  # of this attempt, those played
    before: int = 0  # rounds of the stages and attempts before
    ended: bool = False  # this attempt, ahead of its rounds

    @property
    def now(self) -> Stage:
        return self.stages[self.stage]

    @property
    def over(self) -> bool:
        """Is this attempt at its end?"""
        return self.ended or self.round >= self.now.rounds

    @property
    def last_attempt(self) -> bool:
        return self.attempt + 1 == self.now.n_init

    @property
    def done(self) -> bool:
        return self.over and self.last_attempt and self.stage + 1 == len(self.stages)

    @property
    def played(self) -> int:
        """Rounds so far."""
        return self.before + self.round

    @property
    def planned(self) -> int:
        """Rounds in all, if no stage to come ends ahead of them."""
        this = self.round if self.over else self.now.rounds
        attempts = (self.now.n_init - self.attempt - 1) * self.now.rounds
        return self.before + this + attempts + sum(s.rounds * s.n_init for s in self.stages[self.stage + 1 :])

    def go_on(self) -> None:
        """To the next attempt, or to the next stage."""
        self.before += self.round
        self.round, self.ended = 0, False
        if self.last_attempt:
            self.stage, self.attempt = self.stage + 1, 0
        else:
            self.attempt += 1

    def context(self, seed: int) -> RoundContext:
        """Of the last round played, or of the first."""
        return RoundContext(seed, self.stage, max(0, self.round - 1), self.now.rounds, self.before)

    def numbers(self) -> dict[str, int]:
        return {f.name: int(getattr(self, f.name)) for f in fields(self) if f.name != "stages"}

    def set(self, numbers: dict[str, int]) -> None:
        for name in self.numbers():
            setattr(self, name, numbers[name])
        self.ended = bool(self.ended)
