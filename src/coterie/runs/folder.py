"""A run's folder on disk: written so that a crash, a kill or a full disk loses no good checkpoint.

experiment.toml      what is run, with every setting spelled out
rounds.jsonl         one line of totals per round, each with a checksum of its own
clients/             per round: per-client numbers as columns, and a projection of the rows received
checkpoint.safetensors   all that the rounds to come depend on; checkpoint.previous.safetensors is the one before
result.safetensors   centers, importance, personal models, and what is known of each client, when the run is finished
importance.csv       how much of each cluster every client has
clients.csv          one line per client: its cluster, how sure that is, its points and its scores
summary.json         the numbers of the final table

A run that is to keep numbers alone has in the end no checkpoint, and a result without centers and personal models.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie import toml
from coterie.errors import CoterieError
from coterie.files import (
    CHECKSUM,
    checksum,
    make_folder,
    open_own,
    part_of,
    read_kept,
    refuse_link,
    saying,
    with_checksum,
    without_checksum,
    write_json,
    write_whole,
)
from coterie.runs.tensor_file import read_notes, read_tensors, write_tensors

Numbers = dict[str, int]

log = logging.getLogger("coterie")

CHECKPOINTS = ("checkpoint.safetensors", "checkpoint.previous.safetensors")  # the newest, and the one before
NEXT = "checkpoint.next.safetensors"  # while it is written
IMPORTANCE, CLIENTS = TABLES = ("importance.csv", "clients.csv")
NEEDED = ("algorithm", "task", "rounds", "classes", "megabytes")  # of a summary, in every version
COUNTS = ("round", "stage", "sent")  # of a record
TIMED = "seconds_checksum"
NAMED = 5  # lines, in a sentence
START_OVER = "start over, with `coterie run ... --again` or in another folder"
MODELS = ("centers", "personal.rows", "personal.weights")  # of a result: most of its bytes


class RunFolder:
    """One run's folder."""

    def __init__(self, folder: Path, models: bool = True):
        self.folder, self.models = folder, models  # is it to keep models, or numbers alone?
        self.data = ""  # a fingerprint of the clients' data, where it is known

    @property
    def experiment(self) -> Path:
        return self.folder / "experiment.toml"

    @property
    def taken(self) -> bool:
        """Is there anything that a run would overwrite?"""
        return any((self.folder / name).exists() for name in self._files())

    @property
    def finished(self) -> bool:
        return all((self.folder / name).is_file() for name in ("summary.json", "result.safetensors"))

    def create(self, experiment: str) -> None:
        make_folder(self.folder / "clients")
        write_whole(self.experiment, toml.sealed(experiment).encode())

    def settings(self) -> toml.Table:
        """What is run, as experiment.toml says it."""
        return toml.load_kept(self.experiment)

    def open(self, experiment: str, resume: bool) -> None:
        """For a run that begins here, or for one to go on with."""
        refuse_link(self.folder / "clients")
        if resume and not self.experiment.exists():
            raise CoterieError(f"{self.folder} holds no run that could be resumed; start one there")
        if not resume:
            if self.taken:
                raise CoterieError(
                    f"{self.folder} already holds a run; resume=True goes on with it, or choose another folder"
                )
            self.create(experiment)
        elif self.text() != experiment:
            raise CoterieError(
                f"the run in {self.folder} has other settings; resume it with its own, or start elsewhere"
            )
        for half in self._half():
            half.unlink(missing_ok=True)

    def text(self) -> str:
        """Of the settings."""
        return toml.unsealed(self.experiment.read_text(encoding="utf-8", errors="replace"))

    def clear(self, keep_folder: bool = False) -> None:
        """Forget an earlier run in this folder, and nothing else that lies there.

        A folder that the next run goes to is kept: the lock on it would be lost with it.
        """
        if not self.folder.is_dir():
            return
        with saying(f"clear {self.folder}"):
            for old in (*self._of_clients(), *self._half(), *(self.folder / n for n in self._files())):
                old.unlink(missing_ok=True)
        for folder in (self.folder / "clients", *(() if keep_folder else (self.folder,))):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def _of_clients(self) -> list[Path]:
        """The files of rounds; not those that lie elsewhere, behind a link."""
        folder = self.folder / "clients"
        if folder.is_symlink():
            return []
        return sorted([*folder.glob("[0-9]*.safetensors"), *folder.glob("[0-9]*.safetensors.part")])

    def _half(self) -> list[Path]:
        """What a kill can leave of a file that was being written."""
        return [part_of(self.folder / name) for name in self._files()]

    def _files(self) -> tuple[str, ...]:
        return (
            "summary.json",
            *TABLES,
            "result.safetensors",
            *CHECKPOINTS,
            NEXT,
            "rounds.jsonl",
            "experiment.toml",
        )

    # rounds

    def write_round(self, round: int, record: dict[str, Any], columns: dict[str, Tensor]) -> None:
        self.write_columns(round, columns, record)
        self.append(record)

    def append(self, record: dict[str, Any]) -> None:
        with (
            saying(f"write {self.folder / 'rounds.jsonl'}"),
            open_own(self.folder / "rounds.jsonl", "a") as file,
        ):
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())

    def records(self, rounds: int | None = None) -> list[dict[str, Any]]:
        """The rounds so far, or so many: a line that is not as it was written is taken from that round's own file."""
        return self._records(rounds)[0]

    def _records(self, rounds: int | None) -> tuple[list[dict[str, Any]], bool]:
        """And whether all of them were there."""
        path = self.folder / "rounds.jsonl"
        raw = path.read_bytes() if path.exists() else b""
        lines = raw.removesuffix(b"\n").split(b"\n") if raw else []
        there = {one["round"]: one for line in lines if (one := self._record(line)) is not None}
        records: list[dict[str, Any]] = []
        mended: list[int] = []
        lost: list[int] = []
        behind = max(len(lines), max(there, default=-1) + 1)  # a line may be missing
        for number in range(behind if rounds is None else rounds):
            record = there.get(number) or self._kept_record(number)
            if record is not None:
                records.append(record)
            if number not in there:
                (lost if record is None else mended).append(number + 1)
        if lost == [len(lines)] and rounds is None and not raw.endswith(b"\n"):
            lost = []  # half a line, of a run that was killed
        _say_damaged(path, mended, "what the files of these rounds in clients/ say is taken instead")
        _say_damaged(
            path, lost, "lost and left out, as the files of these rounds in clients/ do not say it either"
        )
        return records, not mended

    def _record(self, line: bytes) -> dict[str, Any] | None:
        """None: it is not as it was written. Older versions wrote no checksum; they too kept the record twice."""
        record = _parsed(line)
        if record is None or CHECKSUM in record:
            return record and _without_checksums(record)
        kept = self._kept_record(record["round"])
        return record if kept is None or kept == _lasting(record) else None

    def _kept_record(self, round: int) -> dict[str, Any] | None:
        try:
            notes = read_notes(self.columns_of(round))
        except CoterieError:
            return None
        record = _parsed(notes.get("record", "").encode())
        return record if record and record["round"] == round else None

    def check_rounds(self, rounds: Iterable[int]) -> None:
        """Say which rounds' per-client numbers are not as they were written: the rest of a run needs none of them."""
        damaged: list[str] = []
        for path in map(self.columns_of, rounds):
            try:
                if path.exists():
                    read_notes(path)
            except CoterieError as problem:
                damaged.append(str(problem))
        if damaged:
            more = f", and so are {len(damaged) - 1} others" if len(damaged) > 1 else ""
            log.warning("%s%s; the rest of the run is whole", damaged[0], more)

    def mend(self) -> None:
        """Of a finished run: put back lines of rounds.jsonl that are known from the rounds' own files."""
        rounds = self.summary()["rounds"]
        records, whole = self._records(rounds)
        if not whole and len(records) == rounds:
            write_whole(self.folder / "rounds.jsonl", "".join(map(_line, records)).encode())

    def keep_records(self, rounds: int) -> list[dict[str, Any]]:
        """Forget the rounds behind the last checkpoint: they will be played again."""
        records = self.records(rounds)
        if len(records) < rounds:
            raise CoterieError(
                f"{self.folder / 'rounds.jsonl'} has {len(records)} of the {rounds} rounds of the checkpoint, and the "
                f"others are nowhere in this folder; {START_OVER}"
            )
        write_whole(self.folder / "rounds.jsonl", "".join(map(_line, records)).encode())
        self.check_rounds(range(rounds))
        return records

    def write_columns(self, round: int, columns: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Per-client numbers of a round, and its record once more; not synced, for they can be had by resuming."""
        notes = {"record": json.dumps(_lasting(record))}
        write_tensors(self.columns_of(round), columns, notes, sync=False)

    def columns_of(self, round: int) -> Path:
        return self.folder / "clients" / f"{round:06d}.safetensors"

    def columns(self, round: int) -> dict[str, Tensor]:
        tensors, _ = read_tensors(self.columns_of(round))
        return tensors

    # tensors

    def write_checkpoint(self, tensors: dict[str, Tensor], numbers: Numbers) -> None:
        """The one before is kept, should this one not be readable."""
        newest, previous = (self.folder / name for name in CHECKPOINTS)
        notes = {"numbers": json.dumps(numbers), "data": self.data, "run": self._run()}
        waiting = newest.with_name(NEXT)
        write_tensors(waiting, tensors, notes)
        with saying(f"write {newest}"):
            if newest.exists():
                os.replace(newest, previous)
            os.replace(waiting, newest)

    def _run(self) -> str:
        """Of the settings: a checkpoint of another run is not taken for one of this."""
        return hashlib.blake2b(self.text().encode(), digest_size=8).hexdigest()

    def checkpoint(self) -> tuple[dict[str, Tensor], Numbers] | None:
        """The newest that can be read; None where there is none."""
        unreadable: list[str] = []
        for path in (self.folder / name for name in CHECKPOINTS):
            if not path.exists():
                continue
            try:
                tensors, notes = read_tensors(path)
                numbers: Numbers = json.loads(notes["numbers"])
            except (CoterieError, ValueError, KeyError) as problem:
                known = isinstance(problem, CoterieError)
                unreadable.append(str(problem) if known else f"{path} is no checkpoint")
                continue
            self._check_own(path, notes)
            if unreadable:
                log.warning("%s; the run goes back to the checkpoint before", unreadable[0])
            return tensors, numbers
        if unreadable:
            raise CoterieError(f"{'; '.join(unreadable)}; there is no other checkpoint: {START_OVER}")
        return None

    def _check_own(self, path: Path, notes: dict[str, str]) -> None:
        if notes.get("run", self._run()) != self._run():
            raise CoterieError(f"{path} is of a run with other settings; start over in another folder")
        if self.data and notes.get("data") and notes["data"] != self.data:
            raise CoterieError(
                f"the data of the clients is not what it was when the run in {self.folder} was begun; resume it with "
                "that data, or start over in another folder"
            )

    def write_result(
        self,
        tensors: dict[str, Tensor],
        ids: tuple[str, ...],
        tables: Mapping[str, bytes],
        summary: dict[str, Any],
    ) -> None:
        """The summary comes last: with it the run is finished."""
        kept = tensors if self.models else {n: each for n, each in tensors.items() if n not in MODELS}
        write_tensors(self.folder / "result.safetensors", kept, {"ids": json.dumps(ids)})
        for name, content in tables.items():
            write_whole(self.folder / name, content)
        if self.models:
            (self.folder / CHECKPOINTS[1]).unlink(missing_ok=True)
        self.write_summary(summary)
        for name in () if self.models else CHECKPOINTS:  # now that nothing is lost with them
            (self.folder / name).unlink(missing_ok=True)

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.folder / "summary.json", with_checksum(summary))

    def result(self, without: Sequence[str] = ()) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Its tensors, all or without some, and the ids of the clients."""
        path = self.folder / "result.safetensors"
        tensors, notes = read_tensors(path, without)
        try:
            ids = json.loads(notes.get("ids", ""))
        except (ValueError, RecursionError):
            ids = None
        known = isinstance(ids, list) and all(isinstance(one, str) for one in ids)
        if not known or len(tensors.get("importance", ())) != len(ids):
            raise CoterieError(f"{path} is not the result of a run")
        return tensors, tuple(ids)

    def summary(self) -> dict[str, Any]:
        path = self.folder / "summary.json"
        if not path.is_file():
            raise CoterieError(f"{self.folder} has no finished run: it has no summary.json")
        summary = read_kept(path)
        if not set(NEEDED) <= summary.keys():
            raise CoterieError(f"{path} is not the summary of a run")
        return summary


def _line(record: dict[str, Any]) -> str:
    """Timings have a checksum of their own, so that all else is the same however often a round is played."""
    timings = _timings(record)
    return json.dumps({**with_checksum(_lasting(record)), **timings, TIMED: checksum(timings)}) + "\n"


def _without_checksums(record: dict[str, Any]) -> dict[str, Any] | None:
    lasting, timings = without_checksum(_lasting(record)), _timings(record)
    return None if lasting is None or timings.pop(TIMED, "") != checksum(timings) else {**lasting, **timings}


def _timings(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name.startswith("seconds")}


def _lasting(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.startswith("seconds")}


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None: it is no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or no text at all
        return None
    known = isinstance(record, dict) and all(type(record.get(name)) is int for name in COUNTS)
    return record if known else None


def _say_damaged(path: Path, lines: list[int], what: str) -> None:
    if lines:
        named, more = ", ".join(map(str, lines[:NAMED])), len(lines) - NAMED
        many = f"lines {named}{f' and {more} more' if more > 0 else ''} of {path} are"
        which = f"line {named} of {path} is" if len(lines) == 1 else many
        log.warning("%s not as written; %s", which, what)
