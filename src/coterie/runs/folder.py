"""A run's folder on disk: written so that a crash, a kill or a full disk loses no good checkpoint.

experiment.toml      what is run, with every setting spelled out
rounds.jsonl         one line of totals per round
clients/             per round: per-client numbers as columns, and a projection of the rows received
checkpoint.safetensors   all that the rounds to come depend on
result.safetensors   centers, importance, personal models, and what is known of each client, when the run is finished
importance.csv       how much of each cluster every client has
clients.csv          one line per client: its cluster, how sure that is, its points and its scores
summary.json         the numbers of the final table
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.engine.storage import row_blocks
from coterie.errors import CoterieError
from coterie.files import Piece, make_folder, saying, write_json, write_whole

Numbers = dict[str, int]

IMPORTANCE, CLIENTS = TABLES = ("importance.csv", "clients.csv")
MODELS = ("centers", "personal.rows", "personal.weights")  # of a result: most of its bytes

KINDS = {  # as safetensors names them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class RunFolder:
    """One run's folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def experiment(self) -> Path:
        return self.folder / "experiment.toml"

    @property
    def taken(self) -> bool:
        """Is there anything that a run would overwrite?"""
        return any((self.folder / name).exists() for name in self._files())

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    def create(self, experiment: str) -> None:
        make_folder(self.folder / "clients")
        write_whole(self.experiment, experiment.encode())

    def open(self, experiment: str, resume: bool) -> None:
        """For a run that begins here, or for one to go on with."""
        if resume and not self.experiment.exists():
            raise CoterieError(f"{self.folder} holds no run that could be resumed; start one there")
        if not resume:
            if self.taken:
                raise CoterieError(f"{self.folder} already holds a run; resume it, or choose another folder")
            self.create(experiment)
        elif self.experiment.read_text(encoding="utf-8") != experiment:
            raise CoterieError(
                f"the run in {self.folder} has other settings; resume it with its own, or start elsewhere"
            )

    def clear(self) -> None:
        """Forget an earlier run in this folder, and nothing else that lies there."""
        if not self.folder.is_dir():
            return
        with saying(f"clear {self.folder}"):
            for old in (
                *self.folder.glob("clients/*.safetensors"),
                *(self.folder / n for n in self._files()),
            ):
                old.unlink(missing_ok=True)
        for folder in (self.folder / "clients", self.folder):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def _files(self) -> tuple[str, ...]:
        return (
            "summary.json",
            *TABLES,
            "result.safetensors",
            "checkpoint.safetensors",
            "rounds.jsonl",
            "experiment.toml",
        )

    # rounds

    def write_round(self, round: int, record: dict[str, Any], columns: dict[str, Tensor]) -> None:
        self.write_columns(round, columns)
        self.append(record)

    def append(self, record: dict[str, Any]) -> None:
        with (
            saying(f"write {self.folder / 'rounds.jsonl'}"),
            (self.folder / "rounds.jsonl").open("a") as file,
        ):
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[dict[str, Any]]:
        """The rounds so far; a last line that was torn off is ignored."""
        path = self.folder / "rounds.jsonl"
        if not path.exists():
            return []
        records = []
        for line in path.read_bytes().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:  # no JSON, or no text at all
                break
        return records

    def keep_records(self, rounds: int) -> list[dict[str, Any]]:
        """Forget the rounds behind the last checkpoint: they will be played again."""
        records = self.records()[:rounds]
        content = "".join(json.dumps(record) + "\n" for record in records)
        write_whole(self.folder / "rounds.jsonl", content.encode())
        return records

    def write_columns(self, round: int, columns: dict[str, Tensor]) -> None:
        """Per-client numbers of a round; not synced, for they can be had again by resuming."""
        path = self.columns_of(round)
        with saying(f"write {path}"):
            path.write_bytes(save({n: t.contiguous().cpu() for n, t in columns.items()}))

    def columns_of(self, round: int) -> Path:
        return self.folder / "clients" / f"{round:06d}.safetensors"

    def columns(self, round: int) -> dict[str, Tensor]:
        tensors, _ = read_tensors(self.columns_of(round))
        return tensors

    # tensors

    def write_checkpoint(self, tensors: dict[str, Tensor], numbers: Numbers) -> None:
        self._write_tensors("checkpoint.safetensors", tensors, {"numbers": json.dumps(numbers)})

    def checkpoint(self) -> tuple[dict[str, Tensor], Numbers] | None:
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        tensors, notes = read_tensors(path)
        return tensors, json.loads(notes["numbers"])

    def write_result(
        self,
        tensors: dict[str, Tensor],
        ids: tuple[str, ...],
        tables: Mapping[str, bytes],
        summary: dict[str, Any],
    ) -> None:
        """The summary comes last: with it the run is finished."""
        self._write_tensors("result.safetensors", tensors, {"ids": json.dumps(ids)})
        for name, content in tables.items():
            write_whole(self.folder / name, content)
        self.write_summary(summary)

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.folder / "summary.json", summary)

    def result(self, without: Sequence[str] = ()) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Its tensors, all or without some, and the ids of the clients."""
        tensors, notes = read_tensors(self.folder / "result.safetensors", without)
        return tensors, tuple(json.loads(notes["ids"]))

    def summary(self) -> dict[str, Any]:
        try:
            summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        except (OSError, json.JSONDecodeError) as problem:
            raise CoterieError(
                f"{self.folder} has no finished run: its summary.json cannot be read"
            ) from problem
        return summary

    def _write_tensors(self, name: str, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
        write_whole(self.folder / name, pieces(tensors, notes))


def pieces(tensors: dict[str, Tensor], notes: dict[str, str]) -> Iterator[Piece]:
    """A safetensors file, in pieces: what is in it may be more than memory holds."""
    widest_first = sorted(tensors, key=lambda n: -tensors[n].element_size())  # each at a multiple of its size
    header: dict[str, Any] = {"__metadata__": notes}
    end = 0
    for name in widest_first:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        where = {"shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[name] = {"dtype": KINDS[tensor.dtype], **where}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in (tensors[name] for name in widest_first):
        flat = tensor.reshape(1, -1) if tensor.dim() == 0 else tensor
        for some in row_blocks(flat):
            yield flat[some].contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data


def read_tensors(path: Path, without: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A safetensors file: its tensors, all or without some, and its notes."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name not in without]  # noqa: SIM118
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (OSError, SafetensorError) as problem:
        raise CoterieError(f"{path} cannot be read ({problem})") from problem
