"""Players take turns: each is a process of its own, and all play one round before anybody plays the next."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coterie
from coterie.bench.process_tree import MARK, end, peak_memory
from coterie.bench.registry import Entrant
from coterie.bench.task import Job, Score

PATIENCE = 900.0  # seconds, for one answer
HERE = Path(__file__).parent


class Missing(Exception):
    """A player cannot play; why."""


@dataclass
class Played:
    """What is known of a player."""

    seconds: list[float] = field(default_factory=list)  # of each round but the first
    steps: list[int] = field(
        default_factory=list
    )  # client-steps of each round but the first, where it counts them
    start_up: float | None = None  # from the start of the process to the end of its first round
    memory: int = 0  # bytes, at most
    device_memory: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    score: Score | None = None
    skipped: str = ""  # why


class Player:
    """A process that plays. It is started with the same number of cores and threads as all others."""

    def __init__(self, entrant: Entrant, python: str, job: Job):
        folder, threads = job.folder, job.conditions.threads
        self.entrant, self.folder, self.played = entrant, folder, Played()
        self._log = folder / f"{entrant.module}-{entrant.variant}.log"
        self._mark = str(self._log)
        self._began = time.perf_counter()
        words = [python, "-m", f"adapters.{entrant.module}", str(folder), *filter(None, [entrant.variant])]
        with self._log.open("w") as log:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**_environment(entrant, folder, threads), MARK: self._mark},
                    start_new_session=True,  # Ctrl-C is for the match alone
                )
            except OSError as problem:
                raise Missing(f"{python} cannot be run: {problem.strerror}") from None
        _limit_cores(self._process.pid, threads)
        try:
            self.played.versions = self._answer()["versions"]
        except BaseException:
            self.stop()
            raise

    def round(self) -> None:
        first = self.played.start_up is None
        answer = self._ask("round")
        if first:
            self.played.start_up = time.perf_counter() - self._began
        else:
            self.played.seconds.append(answer["seconds"])
            self.played.steps += [] if answer["steps"] is None else [answer["steps"]]
        self.played.memory = max(self.played.memory, peak_memory(self._mark))

    def hand_in(self) -> Path:
        self.played.device_memory = self._ask("end")["device_bytes"]
        return self.folder / "handed_in.npz"

    def stop(self, wait: float = 0.0) -> None:
        """Let it end by itself for so many seconds; then end it and all it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=wait)
        self._process.kill()
        self._process.wait()
        end(self._mark)

    def _ask(self, what: str) -> dict[str, Any]:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(what + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise Missing(self._reason()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        if not ready:
            raise Missing(f"it did not answer for {PATIENCE:.0f} s")
        line = pipe.readline()
        if not line:
            raise Missing(self._reason())
        said: dict[str, Any] = json.loads(line)
        if "skipped" in said:
            raise Missing(said["skipped"])
        return said

    def _reason(self) -> str:
        """What its log says last: the error, if one is named."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|NotFound)\b", line)]
        last = (errors or lines or ["it ended without a word"])[-1][:200]
        absent = re.search(r"(?:No module named|No package metadata was found for) '?([\w.-]+)", last)
        return f"{absent[1]} is not installed" if absent else last


def _environment(entrant: Entrant, folder: Path, threads: int) -> dict[str, str]:
    """Where players are found, and how many threads each has."""
    mine = [str(Path(coterie.__file__).parent.parent), os.environ.get("PYTHONPATH")]
    paths = filter(None, [str(HERE), *([] if entrant.rival else mine)])
    own = {name: value.format(folder=folder) for name, value in entrant.environment.items()}
    alike = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**os.environ, **alike, **own, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}


def _limit_cores(pid: int, threads: int) -> None:
    """As many cores as threads: some libraries ask for cores alone."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.sched_setaffinity(pid, cores)


Tell = Callable[[str], None]


def take_turns(
    job: Job,
    entered: list[Entrant],
    pythons: dict[str, str],
    repeats: int,
    tell: Tell,
    played: dict[str, Played],
) -> None:
    """Fill in what each player took. They are started one after another, and then play the same number of rounds."""
    players: dict[str, Player] = {}
    try:
        for entrant in entered:
            tell(f"{entrant.name} starts")
            played[entrant.name] = Played()
            with _missing(entrant.name, played, players):
                player = Player(entrant, pythons.get(entrant.rival, sys.executable), job)
                players[entrant.name], played[entrant.name] = player, player.played
                player.round()
        for turn in range(repeats):
            for name in list(players):
                tell(f"{name}, turn {turn + 1} of {repeats}")
                with _missing(name, played, players):
                    for _ in range(job.work.in_a_turn):
                        players[name].round()
        for name in list(players):
            with _missing(name, played, players):
                played[name].score = job.score(players[name].hand_in())
                players.pop(name).stop(wait=20.0)
    finally:
        for player in players.values():
            player.stop()


@contextlib.contextmanager
def _missing(name: str, played: dict[str, Played], players: dict[str, Player]) -> Iterator[None]:
    """Who cannot go on is out, with the reason; the others go on."""
    try:
        yield
    except Missing as problem:
        played[name].skipped = str(problem)
        if name in players:
            players.pop(name).stop()
