"""FedAvg as the reference of the other methods of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.files import finite
from coterie.runs.folder import RunFolder
from coterie.runs.verdict import Verdict, beside_fedavg


def compare_with_fedavg(stores: Mapping[str, RunFolder]) -> dict[str, dict[str, Any]]:
    """The summaries of all methods; where FedAvg is one of them, the others' verdicts take note of it, and are kept."""
    summaries = {label: store.summary() for label, store in stores.items()}
    reference = next((one for one in summaries.values() if one["algorithm"] == "FedAvg"), None)
    for label, summary in summaries.items() if reference is not None else ():
        verdict = Verdict.of(summary.get("verdict"))
        if reference is None or verdict is None or "fedavg" in verdict.numbers:
            continue
        summary["verdict"] = finite(beside_fedavg(verdict, summary, reference).as_dict())
        stores[label].write_summary(summary)
    return summaries
