"""Who is in which cluster, and how well each client is served: one line per client."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor

from coterie.engine.scores import Scores
from coterie.protocol.personalise import WAYS
from coterie.protocol.result import Result
from coterie.runs.folder import CLIENTS, IMPORTANCE, MODELS, RunFolder
from coterie.runs.metrics import cluster_of

if TYPE_CHECKING:
    import pandas

SCORES = ("loss", "accuracy", "f1")


@dataclass(frozen=True)
class ClientLine:
    """One client; None is what is not known of it."""

    id: str
    cluster: int | None  # that of its largest importance
    importance: float | None  # of that cluster
    margin: float | None  # how much more loss the second best center has than the best, on its own points
    points: int | None  # that it trains on
    loss: float | None  # of its own model on its held-out points, as are the next two
    accuracy: float | None
    f1: float | None
    way: str | None = None  # how its own model is made, where clients choose that


@dataclass(frozen=True)
class Kept:
    """What the folder of a run kept of its clients."""

    importance: Tensor
    margin: Tensor | None
    sizes: Tensor | None
    scores: Scores | None
    way: Tensor | None = None

    @staticmethod
    def of(store: RunFolder, tensors: Mapping[str, Tensor], summary: Mapping[str, Any]) -> Kept:
        scores = _scores("personal.", tensors) or _last_scores(store, summary)
        margin, sizes, way = (tensors.get(name) for name in ("margin", "size", "personal.way"))
        return Kept(tensors["importance"], margin, sizes, scores, way)


def _scores(prefix: str, tensors: Mapping[str, Tensor]) -> Scores | None:
    known = {name: tensors[prefix + name] for name in SCORES if prefix + name in tensors}
    return Scores(**known) if known else None


def _last_scores(store: RunFolder, summary: Mapping[str, Any]) -> Scores | None:
    """Old runs kept scores with their last round alone, which are not those of models that a final phase changed."""
    last = summary["rounds"] - 1
    scores = _scores("test_", store.columns(last)) if store.columns_of(last).exists() else None
    mean = summary.get("personal", {}).get("loss")
    if scores is None or mean is None or not math.isclose(float(scores.loss.nanmean()), mean, rel_tol=1e-5):
        return None
    return scores


def client_lines(ids: Sequence[str], known: Result | Kept, clusters: int) -> list[ClientLine]:
    """A line per client, in the order of the run; without centers (`clusters` is 0) nobody has a cluster."""
    cluster = cluster_of(known.importance) if clusters else known.importance.new_full((len(ids),), -1)
    scores = known.scores.named() if known.scores else {}
    columns = (
        ids,
        [int(s) if s >= 0 else None for s in cluster.tolist()],
        _numbers(known.importance.nan_to_num().amax(1).masked_fill(cluster < 0, math.nan), len(ids)),
        _numbers(known.margin, len(ids)),
        [None if n is None else int(n) for n in _numbers(known.sizes, len(ids))],
        *(_numbers(scores.get(name), len(ids)) for name in SCORES),
        [None if n is None else WAYS[int(n)] for n in _numbers(known.way, len(ids))],
    )
    return [ClientLine(*cells) for cells in zip(*columns, strict=True)]


def read_lines(store: RunFolder) -> tuple[list[ClientLine], int]:
    """Those of a finished run, from its folder, and how many clusters it has."""
    summary, (tensors, ids) = store.summary(), store.result(without=MODELS)
    known = Kept.of(store, tensors, summary)
    clusters = summary.get("clusters", known.importance.shape[1])
    return client_lines(ids, known, clusters), clusters


def lines_so_far(store: RunFolder) -> tuple[list[ClientLine], int]:
    """Of a run that is not finished: as of its last evaluation, and without ids, which its folder does not have yet."""
    for record in reversed(store.records()):
        columns = store.columns(record["round"]) if store.columns_of(record["round"]).exists() else {}
        if "importance" in columns:
            known = Kept(columns["importance"], None, None, _scores("test_", columns))
            clients, clusters = known.importance.shape
            return client_lines([""] * clients, known, clusters), clusters
    return [], 0


def _numbers(values: Tensor | None, clients: int) -> list[float | None]:
    """As short as their precision allows: 0.1 in float32, not 0.10000000149."""
    if values is None:
        return [None] * clients
    return [None if number != number else float(str(number)) for number in values.cpu().numpy()]


# as tables


def columns(lines: Sequence[ClientLine]) -> dict[str, list[Any]]:
    """By name; accuracy, F1 and the way to a model only where clients have them."""
    every = {field.name: [getattr(line, field.name) for line in lines] for field in fields(ClientLine)}
    optional = ("accuracy", "f1", "way")
    return {n: each for n, each in every.items() if n not in optional or any(one is not None for one in each)}


def frame(lines: Sequence[ClientLine]) -> pandas.DataFrame:
    import pandas

    found = columns(lines)
    kinds = {"cluster": "Int64", "points": "Int64", "way": "object"}
    whole = {name: kinds.get(name, "float64") for name in found if name != "id"}
    index = pandas.Index(found.pop("id"), name="id", dtype=object)
    return pandas.DataFrame(found, index=index).astype(whole)


def files(ids: Sequence[str], known: Result | Kept, clusters: int) -> dict[str, bytes]:
    """What a run's folder has for spreadsheets and scripts, by file name."""
    lines = columns(client_lines(ids, known, clusters))
    shares = [_numbers(each, len(ids)) for each in known.importance.T]
    return {
        IMPORTANCE: _csv(["id", *range(len(shares))], zip(ids, *shares, strict=True)),
        CLIENTS: _csv(lines, zip(*lines.values(), strict=True)),
    }


def _csv(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> bytes:
    """An id with a comma, a quote or a line break is quoted; a cell that is not known is empty."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(headings)
    table.writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")
