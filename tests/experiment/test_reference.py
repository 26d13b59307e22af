"""FedAvg beside the other methods of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.experiment.reference import compare_with_fedavg
from coterie.report.verdicts import lines
from coterie.runs.folder import RunFolder
from coterie.runs.verdict import concluded


def kept(folder: Path, algorithm: str, accuracy: float, verdict: Any = None) -> RunFolder:
    folder.mkdir()
    more = {} if verdict is None else {"verdict": verdict.as_dict()}
    summary = {"algorithm": algorithm, "rounds": 10, "personal": {"accuracy": accuracy}, **more}
    store = RunFolder(folder)
    store.write_summary({"task": "classification", "classes": [], "megabytes": 0.0, **summary})
    return store


def test_a_method_that_came_before_fedavg_is_compared_with_it(tmp_path: Path) -> None:
    numbers = {"loss": 0.1, "loss_of_one_model": 0.8, "one_model": "the mean of the centers", "gain": 0.87}
    good = concluded((), {**numbers, "centers": 2, "groups": 2})
    stores = {
        "IFCA": kept(tmp_path / "IFCA", "IFCA", 0.95, good),
        "FedAvg": kept(tmp_path / "FedAvg", "FedAvg", 0.98),
        "FedEM": kept(tmp_path / "FedEM", "FedEM", 0.99, good),
    }
    alone = compare_with_fedavg({"IFCA": stores["IFCA"]})
    assert alone["IFCA"]["verdict"]["good"] is True
    first = compare_with_fedavg(stores)
    assert first["IFCA"]["verdict"]["findings"] == ["fedavg-as-good"]
    assert first["FedEM"]["verdict"]["good"] is True
    assert stores["IFCA"].summary() == first["IFCA"]  # it is kept
    assert compare_with_fedavg(stores) == first  # a run that is resumed is compared once
    shown = list(lines(first))
    assert [line.split(":")[0].strip() for line in shown] == ["IFCA, not good", "FedEM, good"]
    assert "FedAvg reached accuracy 0.980 in 10 rounds, and this 0.950 in 10" in shown[0]
