"""A run's folder on disk: written so that a crash, a kill or a full disk loses no good checkpoint.

experiment.toml      what is run, with every setting spelled out
rounds.jsonl         one line of totals per round
clients/             per round: per-client numbers as columns, and a projection of the rows received
checkpoint.safetensors   all that the rounds to come depend on; checkpoint.previous.safetensors is the one before
result.safetensors   centers, importance, personal models, and what is known of each client, when the run is finished
importance.csv       how much of each cluster every client has
clients.csv          one line per client: its cluster, how sure that is, its points and its scores
summary.json         the numbers of the final table
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.errors import CoterieError
from coterie.files import finite, make_folder, open_own, part_of, saying, write_json, write_whole
from coterie.runs.tensor_file import CHECKSUM, read_tensors, write_tensors

Numbers = dict[str, int]

log = logging.getLogger("coterie")

CHECKPOINTS = ("checkpoint.safetensors", "checkpoint.previous.safetensors")  # the newest, and the one before
NEXT = "checkpoint.next.safetensors"  # while it is written
IMPORTANCE, CLIENTS = TABLES = ("importance.csv", "clients.csv")
NEEDED = ("algorithm", "task", "rounds", "classes", "megabytes")  # of a summary, in every version
COUNTS = ("round", "stage", "sent")  # of a record
MODELS = ("centers", "personal.rows", "personal.weights")  # of a result: most of its bytes


class RunFolder:
    """One run's folder."""

    def __init__(self, folder: Path):
        self.folder = folder
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
        write_whole(self.experiment, experiment.encode())

    def open(self, experiment: str, resume: bool) -> None:
        """For a run that begins here, or for one to go on with."""
        if (self.folder / "clients").is_symlink():
            raise CoterieError(f"{self.folder / 'clients'} is a link; a run writes through none: remove it")
        if resume and not self.experiment.exists():
            raise CoterieError(f"{self.folder} holds no run that could be resumed; start one there")
        if not resume:
            if self.taken:
                raise CoterieError(f"{self.folder} already holds a run; resume it, or choose another folder")
            self.create(experiment)
        elif self.experiment.read_bytes() != experiment.encode():
            raise CoterieError(
                f"the run in {self.folder} has other settings; resume it with its own, or start elsewhere"
            )
        for half in self._half():
            half.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget an earlier run in this folder, and nothing else that lies there."""
        if not self.folder.is_dir():
            return
        with saying(f"clear {self.folder}"):
            for old in (*self._of_clients(), *self._half(), *(self.folder / n for n in self._files())):
                old.unlink(missing_ok=True)
        for folder in (self.folder / "clients", self.folder):
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
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self, rounds: int | None = None) -> list[dict[str, Any]]:
        """The rounds so far, or so many: a line that cannot be read is taken from that round's own file."""
        path = self.folder / "rounds.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        records: list[dict[str, Any]] = []
        for number in range(len(lines) if rounds is None else rounds):
            record = _record(lines[number], number) if number < len(lines) else None
            torn = rounds is None and number + 1 == len(lines)  # the last line, of a run that was killed
            if record is None and not torn:
                record = self._kept_record(number)
                mended = "taken from that round's file" if record else "the rounds from there on are left out"
                log.warning("line %d of %s cannot be read; %s", number + 1, path, mended)
            if record is None:
                break
            records.append(record)
        return records

    def _kept_record(self, round: int) -> dict[str, Any] | None:
        try:
            _, notes = read_tensors(self.columns_of(round))
        except CoterieError:
            return None
        return _record(notes.get("record", "").encode(), round)

    def keep_records(self, rounds: int) -> list[dict[str, Any]]:
        """Forget the rounds behind the last checkpoint: they will be played again."""
        records = self.records(rounds)
        if len(records) < rounds:
            raise CoterieError(
                f"{self.folder / 'rounds.jsonl'} has {len(records)} of the {rounds} rounds of the checkpoint, and the "
                "others are nowhere in this folder; start over in another one"
            )
        content = "".join(json.dumps(record) + "\n" for record in records)
        write_whole(self.folder / "rounds.jsonl", content.encode())
        return records

    def write_columns(self, round: int, columns: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Per-client numbers of a round, and its record once more; not synced, for they can be had by resuming."""
        lasting = {name: value for name, value in record.items() if not name.startswith("seconds")}
        write_tensors(self.columns_of(round), columns, {"record": json.dumps(lasting)}, sync=False)

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
        return hashlib.blake2b(self.experiment.read_bytes(), digest_size=8).hexdigest()

    def checkpoint(self) -> tuple[dict[str, Tensor], Numbers] | None:
        """The newest that can be read; None where there is none."""
        unreadable: CoterieError | None = None
        for path in (self.folder / name for name in CHECKPOINTS):
            if not path.exists():
                continue
            try:
                tensors, notes = read_tensors(path)
                numbers: Numbers = json.loads(notes["numbers"])
            except (CoterieError, ValueError, KeyError) as problem:
                why = problem if isinstance(problem, CoterieError) else f"{path} is no checkpoint"
                unreadable = CoterieError(str(why))
                continue
            self._check_own(path, notes)
            if unreadable is not None:
                log.warning("%s; the run goes back to the checkpoint before", unreadable)
            return tensors, numbers
        if unreadable is not None:
            raise unreadable
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
        write_tensors(self.folder / "result.safetensors", tensors, {"ids": json.dumps(ids)})
        for name, content in tables.items():
            write_whole(self.folder / name, content)
        (self.folder / CHECKPOINTS[1]).unlink(missing_ok=True)
        self.write_summary(summary)

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.folder / "summary.json", {**summary, CHECKSUM: _checksum(summary)})

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
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as problem:
            raise CoterieError(
                f"{self.folder} has no finished run: its summary.json cannot be read"
            ) from problem
        if not isinstance(summary, dict) or not set(NEEDED) <= summary.keys():
            raise CoterieError(f"{path} is not the summary of a run")
        if summary.pop(CHECKSUM, None) not in (None, _checksum(summary)):  # runs of older versions have none
            raise CoterieError(f"{path} is damaged: it is not as it was written")
        return summary


def _checksum(summary: dict[str, Any]) -> str:
    content = json.dumps(finite(summary), sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _record(line: bytes, round: int) -> dict[str, Any] | None:
    """None: it is no line of this round."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or no text at all
        return None
    known = isinstance(record, dict) and all(type(record.get(name)) is int for name in COUNTS)
    return record if known and record["round"] == round else None
