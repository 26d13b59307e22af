"""Whatever lies in an experiment, a run's folder or a data file: a command does its work or says one sentence."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import toml
from coterie.algorithms import ALGORITHMS
from coterie.cli.main import main
from coterie.cli.run import DIVERGED
from coterie.data.partitions.settings import Partition
from coterie.engine.training import Training
from coterie.errors import CoterieError
from coterie.experiment.experiment import load
from coterie.experiment.schema import parameters
from coterie.protocol.participation import Participation
from coterie.protocol.stages import Progress
from tests.mutations import copied, damage, odd_table, odd_text

FEW = range(12)  # batches of `make test`, and ...
MANY = range(12, 132)  # ... of `make test-slow`
SIZE = 10  # cases in a batch
SEEDS = [*FEW, *(pytest.param(batch, marks=pytest.mark.slow) for batch in MANY)]
ROUNDS = 20  # more are not played here

Arguments = Sequence[str | Path]


@pytest.fixture(autouse=True)
def _some_memory() -> Iterator[None]:
    """A case that would take all of it is to end here, and not everything else on this machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    now = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    if now:
        resource.setrlimit(resource.RLIMIT_AS, (now + 6 * 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def sound(arguments: Arguments, capsys: pytest.CaptureFixture[str], case: str) -> int:
    """The command ends by itself, and what it refuses it refuses in one sentence at the end."""
    capsys.readouterr()
    try:
        code = main([str(one) for one in arguments])
    except BaseException as problem:
        raise AssertionError(f"{case}: {' '.join(map(str, arguments))} ended in {problem!r}") from problem
    said = capsys.readouterr().err
    assert code in (0, 2, DIVERGED), f"{case}: ended with {code}: {said}"
    if code:
        last = said.splitlines()[-1]
        assert last.startswith("coterie: "), f"{case}: {said}"
        assert len(last) < 2000, f"{case}: {last[:3000]}"
    return code


# experiments

SYNTHETIC: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "gaussians", "clients": 6, "sizes": [4, 6], "dimension": 3, "distribution_points": 20},
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"learning_rate": 0.05, "epochs": 1, "batch_size": 4},
    "algorithm": {"name": "FedSoft", "n_clusters": 2},
    "participation": {"absent": 0.1},
}
DIGITS: dict[str, Any] = {
    "seed": 1,
    "data": {"source": "digits", "clients": 5, "train_points": 12, "distributions": "rotate", "clusters": 2},
    "model": "linear",
    "method": [
        {"rounds": 1, "algorithm": {"name": "FedAvg"}},
        {"label": "two", "rounds": 2, "algorithm": {"name": "WeCFL", "n_clusters": 2}},
    ],
}
GRAPH: dict[str, Any] = {
    "data": {
        "source": "regressions",
        "clients": 8,
        "sizes": [4, 6],
        "dimension": 3,
        "distribution_points": 20,
    },
    "model": {"name": "linear", "bias": False},
    "topology": {"name": "erdos_renyi", "degree": 4},
    "stages": [
        {"rounds": 1, "algorithm": {"name": "IFCA", "n_clusters": 2}},
        {"rounds": 1, "algorithm": {"name": "FedSPD", "n_clusters": 2, "final_epochs": 1}},
    ],
    "privacy": {"clip": 1.0, "noise": 1.0},
}


def known(table: dict[str, Any]) -> list[tuple[str, ...]]:
    """Settings that the experiment leaves out."""
    algorithms = {name for one in ALGORITHMS.values() for name in parameters(one)}
    inside = {
        "training": parameters(Training),
        "participation": parameters(Participation),
        "algorithm": algorithms,
    }
    inside["data"] = {**parameters(Partition), "noise": 0, "separation": 0, "classes": 0, "test_points": 0}
    top = (
        "name",
        "seed",
        "evaluate_every",
        "checkpoint_every",
        "dtype",
        "threads",
        "compile",
        "until",
        "n_init",
        "init",
    )
    return [
        *((key,) for key in top),
        *((section, key) for section in inside if section in table for key in inside[section]),
    ]


def can_be_played(path: Path) -> bool:
    """Is it over soon? What cannot be read is."""
    try:
        asked = load(path)
    except CoterieError:
        return True
    stages = [stage for method in asked.methods for stage in method.stages]
    longest = max(max(stage.training.epochs, stage.training.steps or 0) for stage in stages)
    planned = sum(Progress(method.stages).planned for method in asked.methods)
    final = max(getattr(stage.algorithm, "final_epochs", 0) or 0 for stage in stages)
    return planned <= ROUNDS and max(longest, final) <= ROUNDS and not asked.auto


def prepared(path: Path, case: str) -> None:
    try:
        load(path).prepare()
    except CoterieError:
        pass
    except Exception as problem:
        raise AssertionError(f"{case}: {path.read_bytes()!r} ended in {problem!r}") from problem


@pytest.mark.parametrize("batch", SEEDS)
def test_experiments(batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(batch * SIZE, (batch + 1) * SIZE):
        draw = random.Random(number)
        table = draw.choice((SYNTHETIC, SYNTHETIC, DIGITS, GRAPH))
        case, path = f"experiment {number}", tmp_path / f"{number}.toml"
        try:
            odd = odd_table(draw, table, known(table))
            text = toml.write(odd)
        except CoterieError:  # no TOML can say it
            continue
        path.write_bytes(text.encode() if draw.random() < 0.75 else odd_text(draw, toml.write(table)))
        if can_be_played(path):
            sound(
                ["run", path, "--out", tmp_path / f"out-{number}"],
                capsys,
                f"{case}: {path.read_bytes()[:3000]!r}",
            )
        else:
            prepared(path, case)


# folders


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two methods, and of one."""
    folder = tmp_path_factory.mktemp("finished")
    for name, table in (("one", SYNTHETIC), ("two", DIGITS)):
        (folder / f"{name}.toml").write_text(toml.write(table))
        assert main(["run", str(folder / f"{name}.toml"), "--out", str(folder / name)]) == 0
    (folder / "new.csv").write_text("a,b,c,y\n" + "0.1,0.2,0.3,1\n0.3,0.2,0.1,0\n" * 3)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has some rounds to go."""
    folder = tmp_path_factory.mktemp("stopped")
    asked = {**SYNTHETIC, "rounds": 4, "checkpoint_every": 2}
    (folder / "e.toml").write_text(toml.write(asked))
    prepared = load(folder / "e.toml").prepare()

    def stop(record: dict[str, Any], _: int) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared.play(prepared.experiment.methods[0], folder / "run", watch=stop)
    return folder / "run"


@pytest.mark.parametrize("batch", SEEDS)
def test_folders(
    batch: int, finished: Path, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(batch * SIZE, (batch + 1) * SIZE):
        draw = random.Random(number)
        origin = draw.choice((finished / "one", finished / "two", stopped))
        folder = copied(origin, tmp_path / str(number))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        broken = draw.choice(files)
        case = f"folder {number}, {broken.relative_to(tmp_path)}: {damage(draw, broken)}"
        reading = [
            ["show", folder],
            ["compare", folder],
            ["cite", folder],
            ["onboard", folder, finished / "new.csv"],
        ]
        for command in (*draw.sample(reading, 2), ["resume", folder]):
            sound(command, capsys, case)


# data


def arrays(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        x, y = rng.normal(size=(12, 3)), rng.integers(0, 3, 12)
        save: Callable[..., None] = np.savez_compressed if name == "b" else np.savez
        save(folder / f"{name}.npz", x=x, y=y)


def tables(folder: Path) -> None:
    import pandas as pd

    rng = np.random.default_rng(1)
    for name in ("a", "b", "c"):
        table = pd.DataFrame(rng.normal(size=(12, 3)), columns=["p", "q", "r"])
        table["y"] = rng.integers(0, 3, 12)
        if name == "b":
            table.to_parquet(folder / "b.parquet", index=False)
        else:
            table.to_csv(folder / f"{name}.csv", index=False)


@pytest.mark.parametrize("batch", SEEDS)
def test_data_files(batch: int, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(batch * SIZE, (batch + 1) * SIZE):
        draw = random.Random(number)
        folder = tmp_path / f"data-{number}"
        folder.mkdir()
        draw.choice((arrays, tables))(folder)
        broken = draw.choice(sorted(folder.iterdir()))
        how = damage(draw, broken)
        if draw.random() < 0.3 and broken.is_file():
            how += f", {damage(draw, broken)}"
        case = f"data {number}, {broken.name}: {how}"
        path = tmp_path / f"{number}.toml"
        path.write_text(
            toml.write({**SYNTHETIC, "rounds": 1, "data": {"source": "folder", "path": folder.name}})
        )
        command = draw.choice(
            (
                ["run", path, "--out", tmp_path / f"out-{number}"],
                ["cluster", folder, "--clusters", "2", "--out", tmp_path / f"{number}.csv"],
                ["onboard", finished / "one", broken],
            )
        )
        sound(command, capsys, case)
