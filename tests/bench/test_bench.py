"""The bench compares what can be compared, and says why where it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.bench import command, session
from coterie.bench.process_tree import MARK, PROC, end, members, peak_memory
from coterie.bench.processes import Measured, run_interleaved
from coterie.bench.registry import BASELINES, Baseline, baselines_for, pythons
from coterie.bench.roofline import Ceilings, bytes_of_step, flops_of_step, least_seconds
from coterie.bench.table import markdown
from coterie.bench.task import Conditions, Score, Task
from coterie.bench.workloads import WORKLOADS, Workload
from coterie.cli.main import main
from coterie.errors import CoterieError, Interrupted

TINY = Workload("tiny", "fedavg", "mlp", (5,), 3, 4, 20, 1, tolerance=0.2)
CLUSTERED = replace(TINY, clients=8, clusters=2, share=0.8, tolerance=0.1)
INITIAL = Score(2.0, 0.1)


def named(name: str, algorithm: str = "fedavg") -> Baseline:
    return next(b for b in BASELINES if b.name == name and algorithm in b.algorithms)


def measured_rows(work: Workload, names: list[str], folder: Path, *others: Baseline) -> dict[str, Any]:
    measured: dict[str, Measured] = {}
    task = Task(work, folder / "task", Conditions())
    selected = [*(named(name, work.algorithm) for name in names), *others]
    run_interleaved(task, selected, {"nowhere": str(folder / "python")}, 2, lambda _: None, measured)
    return session.rows(work, task.initial, measured)


def test_baselines_run_interleaved_and_an_absent_one_is_skipped_with_the_reason(tmp_path: Path) -> None:
    absent = Baseline("absent", "absent"), Baseline("nowhere", "flower", simulator="nowhere")
    rows = measured_rows(TINY, ["usual loop", "coterie"], tmp_path, *absent)
    assert rows["absent"] == {"skipped": "adapters.absent is not installed"}
    assert rows["nowhere"] == {"skipped": f"{tmp_path / 'python'} cannot be run: No such file or directory"}
    for name in ("usual loop", "coterie"):
        row = rows[name]
        assert row["differs"] == ""
        assert len(row["all_seconds"]) == 2
        assert row["client_steps_per_second"] == 4 * 2 / row["seconds_a_round"]
        assert row["start_up_seconds"] > row["seconds_a_round"] > 0
        assert row["versions"]["torch"]
        assert row["peak_memory_bytes"] > 10**8  # torch alone has more


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lean loop", "lean loop, processes"])
def test_other_loops_learn_what_the_usual_one_does(name: str, tmp_path: Path) -> None:
    assert measured_rows(TINY, ["usual loop", name], tmp_path)[name]["differs"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        replace(CLUSTERED, algorithm="ifca"),
        replace(CLUSTERED, algorithm="fedsoft", settings={"pull": 0.1, "draws": 8, "refresh": 2}),
        replace(CLUSTERED, algorithm="fedspd", degree=4.0),
    ],
    ids=lambda work: work.algorithm,
)
def test_plain_loops_of_clustered_algorithms_learn_what_coterie_does(work: Workload, tmp_path: Path) -> None:
    rows = measured_rows(work, ["usual loop", "coterie"], tmp_path)
    assert rows["coterie"]["differs"] == ""
    assert rows["usual loop"]["client_steps_per_second"] > 0


@pytest.mark.slow
def test_k_fed_is_compared_by_accuracy(tmp_path: Path) -> None:
    work = replace(WORKLOADS["kfed"], clients=4, points=40, clusters=4, shape=(5,))
    rows = measured_rows(work, ["pooled k-means", "coterie"], tmp_path)
    assert rows["coterie"]["differs"] == ""
    assert rows["coterie"]["accuracy"] == 1.0


def scored(loss: float | None, accuracy: float | None = 0.5, seconds: float = 1.0) -> Measured:
    return Measured([seconds, seconds], memory=10**6, start_up=3.0, score=Score(loss, accuracy))


def test_a_baseline_that_has_not_learned_the_same_is_marked() -> None:
    measured = {"usual loop": scored(1.0), "near": scored(1.19), "far": scored(0.7), "idle": scored(2.0)}
    rows = session.rows(TINY, INITIAL, measured)
    marks = {name: row["differs"] for name, row in rows.items()}
    assert marks["usual loop"] == marks["near"] == ""
    assert marks["far"] == "off by 30 % of the way from the start, more than 20 %"
    assert marks["idle"].startswith("off by 1e+02 %")
    assert session.differs(TINY, Score(None, None), Score(None, 0.9), Score(None, 1.0)) != ""
    assert session.differs(TINY, Score(None, None), Score(None, 0.99), Score(None, 1.0)) == ""


def test_the_table_says_it_all() -> None:
    slow, fast = scored(1.0, seconds=2.0), scored(0.5, seconds=0.5)
    rows = session.rows(
        TINY, INITIAL, {"usual loop": slow, "fast": fast, "none": Measured(skipped="not here")}
    )
    origin = dict.fromkeys(("machine", "threads", "device", "repeats", "versions", "commit", "date"), "?")
    provenance = {**origin, "command": "bench", "tf32": False}
    lines = markdown(
        {"provenance": provenance, "workloads": {"t": {"settings": TINY.named(), "baselines": rows}}}
    )
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[:5]]
    assert cells[2] == ["tiny", "usual loop", "4", "1", "2", "0 %", "3", "1", "1", "0.5"]
    assert cells[3][:5] == ["", "fast", "16", "4", "0.5"]
    assert cells[3][8] == "0.5 (off by 50 % of the way from the start, more than 20 %)"
    assert cells[4][1:3] == ["none", "skipped: not here"]


def test_the_roofline_is_the_longer_of_bytes_and_flops() -> None:
    work = WORKLOADS["mlp-1000"]
    parameters = 784 * 200 + 200 + 200 * 10 + 10
    forward = 2 * 10 * (784 * 200 + 200 * 10)
    backward = 2 * 10 * (784 * 200 + 2 * 200 * 10)  # the inputs of the first layer need no gradient
    assert bytes_of_step(work) == 24 * parameters
    assert flops_of_step(work) == forward + backward
    assert least_seconds(work, Ceilings(24 * parameters, 1e30)) == 1.0
    assert least_seconds(work, Ceilings(1e30, (forward + backward) / 3)) == 3.0


def test_the_baselines_depend_on_the_workload_and_the_device() -> None:
    names = [b.name for b in baselines_for(WORKLOADS["mlp"], "cpu", 2)]
    assert names[0] == "usual loop"
    assert {"Flower", "pfl-research", "FedJAX", "coterie", "lean loop, processes"} < set(names)
    assert "lean loop, processes" not in [b.name for b in baselines_for(WORKLOADS["mlp"], "cpu", 1)]
    assert "Flower" not in [b.name for b in baselines_for(WORKLOADS["mlp"], "cuda", 2)]
    assert [b.name for b in baselines_for(WORKLOADS["kfed"], "cpu", 2)] == ["pooled k-means", "coterie"]
    assert [b.name for b in baselines_for(WORKLOADS["mlp"], "cpu", 2, ["coterie"])] == ["coterie"]
    assert "mlp-1000" not in session.chosen([], "cpu")
    assert "mlp-1000" in session.chosen(["mlp-1000"], "cpu")


def test_a_baseline_that_does_not_exist() -> None:
    with pytest.raises(
        CoterieError, match=r"--baseline is 'flower'; allowed is one of 'usual loop', .*'Flower'"
    ):
        command.bench(["linear"], Conditions(), 1, [], None, ["flower"])


def test_none_of_the_baselines_named_can_run_it() -> None:
    with pytest.raises(CoterieError, match="--baseline names none that can run kfed on cpu"):
        command.bench(["kfed"], Conditions(), 1, [], None, ["Flower"])


def test_simulators_have_pythons_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_BENCH_PFL", "somewhere")
    monkeypatch.delenv("COTERIE_BENCH_FLOWER", raising=False)
    monkeypatch.delenv("COTERIE_BENCH_FEDJAX", raising=False)
    found = pythons([f"fedjax={__file__}"])
    assert found == {"fedjax": __file__, "flower": sys.executable, "pfl": "somewhere"}
    for wrong in ("fedjax", "else=x", "fedjax=/no/such/python"):
        with pytest.raises(CoterieError, match="--python"):
            pythons([wrong])


def test_ctrl_c_shows_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def stopped(*given: Any) -> None:
        given[-1]["usual loop"] = scored(1.0)
        given[-1]["lean loop"] = Measured()
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run_interleaved", stopped)
    with pytest.raises(Interrupted):
        command.bench(["linear"], Conditions(), 1, [], tmp_path / "report.json")
    shown = capsys.readouterr().out
    assert "usual loop" in shown
    assert "skipped: interrupted" in shown
    assert not (tmp_path / "report.json").exists()


def test_what_is_finished_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first workload is measured, the second ended from outside."""
    works: list[str] = []

    def measure(task: Task, *given: Any) -> None:
        works.append(task.work.title)
        given[-1]["usual loop"] = scored(1.0)
        if len(works) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("it went on")

    monkeypatch.setattr(session, "run_interleaved", measure)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="has the finished workloads: 1"):
        command.bench(["linear", "kfed"], Conditions(), 1, [], tmp_path / "report.json")
    assert signal.getsignal(signal.SIGTERM) is before
    assert list(json.loads((tmp_path / "report.json").read_text())["workloads"]) == ["linear"]


def test_times_that_vary_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*given: Any) -> None:
        given[-1]["usual loop"] = replace(scored(1.0), seconds=[1.0, 1.01, 1.02])
        given[-1]["coterie"] = replace(scored(1.0), seconds=[0.1, 0.9])

    monkeypatch.setattr(session, "run_interleaved", measure)
    command.bench(["linear"], Conditions(), 3, [], None)
    shown = capsys.readouterr().out
    assert "The rounds of linear, 100 clients, coterie vary by more than 50 %" in shown
    assert "median of 2 to 3 rounds" in shown


def test_threads_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert command.default_threads() == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert command.default_threads() in range(1, (os.cpu_count() or 1) + 1)


def test_the_report_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        session, "run_interleaved", lambda *given: given[-1].update({"usual loop": scored(1.0)})
    )
    assert main(["bench", "--only", "linear", "--threads", "1", "--out", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["provenance"]["threads"] == 1
    assert report["workloads"]["linear"]["baselines"]["usual loop"]["seconds_a_round"] == 1.0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "nothing"], "--only is 'nothing'; allowed is one of linear,"),
        (["--repeats", "0"], "--repeats is 0; allowed is a whole number from 1"),
        (["--threads", "0"], "--threads is 0"),
        (["--device", "tpu"], "--device is 'tpu'; allowed is cpu or cuda"),
        (["--tf32"], "--tf32 is given without --device cuda"),
    ],
)
def test_mistakes_are_said_in_a_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert says in capsys.readouterr().err


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    shown = capsys.readouterr().out
    assert [line.split(":")[0] for line in shown.splitlines()] == list(WORKLOADS)


@pytest.mark.skipif(not PROC.exists(), reason="needs /proc")
def test_processes_of_a_baseline_are_known_by_its_mark() -> None:
    waits = "import time; print(1, flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    words, mark = [sys.executable, "-c", code], "of this test"
    with subprocess.Popen(words, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()  # the second is there
        found = members(mark)
        assert started.pid in found
        assert len(found) == 2
        assert peak_memory(mark) > 10**6
        end(mark)
    assert members(mark) == []


def test_coterie_loads_none_of_it_before_it_is_used() -> None:
    code = "import sys, coterie.cli; sys.exit('coterie.bench' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
