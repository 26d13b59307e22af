"""What a folder knows of a run, finished or not: for `coterie show`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie import toml
from coterie.errors import CoterieError
from coterie.files import finite
from coterie.report import verdicts
from coterie.report.clusters import Cluster, clusters_of, worst
from coterie.report.compare import Numbers, labels_of, measured
from coterie.runs.client_table import ClientLine, lines_so_far, read_lines
from coterie.runs.folder import RunFolder
from coterie.runs.result import Record

NAMED = 10  # folders, in a sentence


@dataclass(frozen=True)
class Shown:
    """One method of a run."""

    label: str
    folder: Path
    settings: str  # in one line
    in_python: bool  # was it made there?
    records: list[Record]  # of the rounds that were played
    lines: list[ClientLine]  # without ids, where the run is not finished
    clusters: list[Cluster]
    summary: Mapping[str, Any] | None  # None: it is not finished
    numbers: Numbers  # of the table at the end

    @property
    def finished(self) -> bool:
        return self.summary is not None

    def state(self) -> str:
        """How far it is, in a few words."""
        rounds = f"{len(self.records)} rounds"
        if self.finished:
            return f"{len(self.lines)} clients, {rounds}"
        loss = self.records[-1].get("loss") if self.records else None
        return f"not finished, {rounds} so far" + ("" if loss is None else f", training loss {loss:.4g}")

    @property
    def verdict(self) -> list[str]:
        """What the run says of itself, in sentences."""
        return [line.strip() for line in verdicts.lines({self.label: self.summary or {}})]

    def named(self, count: int) -> dict[str, Any]:
        """For JSON."""
        return {
            "label": self.label,
            "folder": str(self.folder),
            "finished": self.finished,
            "rounds": len(self.records),
            "settings": self.settings,
            "clients": len(self.lines),
            "numbers": self.numbers,
            "clusters": [one.named() for one in self.clusters],
            "verdict": (self.summary or {}).get("verdict"),
            "worst": [asdict(line) for line in worst(self.lines, count)] if self.finished else [],
        }


def as_json(found: Sequence[Shown], count: int) -> str:
    return json.dumps(finite([one.named(count) for one in found]), indent=1)


def read(folder: Path, wide: bool) -> tuple[list[Shown], list[str]]:
    """The methods of the run in this folder, as its experiment lists them, and the labels of those not yet begun."""
    if (folder / "experiment.toml").is_file():
        toml.load_kept(folder / "experiment.toml")
    stores = [RunFolder(folder / label) for label in labels_of(folder)] or [RunFolder(folder)]
    begun = [store for store in stores if store.experiment.is_file() and (store.folder / "clients").is_dir()]
    seeds = _seeds(folder)
    if not begun and seeds:
        raise CoterieError(
            f"{folder} holds runs of several seeds; `coterie show {seeds[0]}` shows one of them, and "
            f"`coterie compare {folder}` all, side by side"
        )
    if not begun:
        raise CoterieError(
            f"{folder} holds no run; allowed is a folder made by `coterie run`, or one of its methods'{_below(folder)}"
        )
    return [_read(store, wide) for store in begun], [s.folder.name for s in stores if s not in begun]


def _seeds(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("seed-*/experiment.toml"))


def _below(folder: Path) -> str:
    """The runs in the folders of this one."""
    names = sorted(str(file.parent) for file in folder.glob("*/experiment.toml"))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f": {', '.join(names[:NAMED])}{more}" if names else ""


def _read(store: RunFolder, wide: bool) -> Shown:
    try:
        table = store.settings()
        summary = store.summary() if store.finished else None
        records = store.records(None if summary is None else summary["rounds"])
        store.check_rounds(record["round"] for record in records)
        lines, clusters = lines_so_far(store) if summary is None else read_lines(store)
        return Shown(
            label=str(table.get("label") or (summary or {}).get("algorithm") or store.folder.name),
            folder=store.folder,
            settings=_settings(table),
            in_python="made" in table,
            records=records,
            lines=lines,
            clusters=clusters_of(lines, clusters),
            summary=summary,
            numbers={} if summary is None else measured(summary, wide),
        )
    except CoterieError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        raise CoterieError(f"{store.folder} holds no whole run: {problem}") from problem


# settings

_TRAINING = ("learning_rate", "batch_size", "epochs", "steps")


def _settings(table: Mapping[str, Any]) -> str:
    """Those that matter most, in one line."""
    if "made" in table:
        found = re.match(r"Stage\(algorithm=(.*), rounds=\d+, training=", str(table["stages"][-1]))
        said = [found[1] if found else "", "made in Python"]
    else:
        stage = {**table, **(table["stage"][-1] if table.get("stage") else {})}
        training, topology = stage.get("training", {}), stage.get("topology", {"kind": "server"})
        said = [
            f"{_called(stage['algorithm'], 'name')}, rounds {stage['rounds']}",
            ", ".join(f"{name} {training[name]}" for name in _TRAINING if name in training),
            "" if topology["kind"] == "server" else _called(topology, "kind"),
            f"data {table['data']['source']}, model {table['model']['name']}",
        ]
    return "; ".join([*filter(None, said), f"seed {table.get('seed', 0)}"])


def _called(table: Mapping[str, Any], name: str) -> str:
    """As Python would write it: FedSoft(n_clusters=2)."""
    return f"{table[name]}({', '.join(f'{key}={value}' for key, value in table.items() if key != name)})"
