"""`coterie cite RUN`: the BibTeX of what a run used, each entry once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie import ALGORITHMS, FedAvg, KFed, Participation, Privacy, toml
from coterie.cli.main import main
from coterie.report.citation import COTERIE, NOISE_ON_MODELS, POWER_OF_CHOICE, citation

SMALL: dict[str, Any] = {
    "rounds": 4,
    "data": {"source": "gaussians", "clients": 6, "sizes": [6, 8], "dimension": 3, "distribution_points": 20},
    "model": {"name": "linear"},
}
GRAPH = {"topology": {"kind": "complete"}}


def _begun(folder: Path, **settings: Any) -> Path:
    """A folder in which nothing but the experiment lies, as that of a run that was just begun."""
    folder.mkdir()
    (folder / "experiment.toml").write_text(toml.write({**SMALL, **settings}))
    return folder


def _of(*names: str) -> list[str]:
    return [ALGORITHMS[name].bibtex for name in names]


def _begun_by(name: str, after: str) -> list[str]:
    return [_first(name, after), *_of(after)]


def _first(name: str, after: str) -> str:
    return f"% {name}: the initialisation of {after}\n{ALGORITHMS[name].bibtex}"


def _entries(folder: Path) -> list[str]:
    return citation(folder).split("\n\n")


@pytest.mark.parametrize(
    ("settings", "entries"),
    [
        ({"algorithm": {"name": "FedAvg"}}, _of("FedAvg")),
        ({"algorithm": {"name": "Local"}}, []),
        ({"algorithm": {"name": "IFCA", "n_clusters": 2}, "init": "random"}, _of("IFCA")),
        ({"algorithm": {"name": "IFCA", "n_clusters": 2}}, _begun_by("WeCFL", "IFCA")),  # clients
        ({"algorithm": {"name": "FedSPD", "n_clusters": 2}, **GRAPH}, _of("FedSPD")),  # sketch: of no paper
        (
            {"algorithm": {"name": "FedSPD", "n_clusters": 2}, "init": "soft", **GRAPH},
            _begun_by("FedSoft", "FedSPD"),
        ),
        (
            {"algorithm": {"name": "FedEM", "n_clusters": 2}, "init": "one-shot"},
            _begun_by("OneShot", "FedEM"),
        ),
        ({"algorithm": {"name": "WeCFL", "n_clusters": 2}, "init": "warm-up"}, _begun_by("FedAvg", "WeCFL")),
        ({"algorithm": {"name": "FedAvg+", "n_clusters": 2}}, _of("WeCFL")),
    ],
)
def test_algorithms_and_what_initialises_them(
    settings: dict[str, Any], entries: list[str], tmp_path: Path
) -> None:
    assert _entries(_begun(tmp_path / "run", **settings)) == [*entries, COTERIE]


def test_the_union_of_several_methods(tmp_path: Path) -> None:
    names = ("FedAvg", "FedProx", "FedAvg")
    methods = [{"label": f"m{i}", "algorithm": {"name": name}} for i, name in enumerate(names)]
    assert _entries(_begun(tmp_path / "run", method=methods)) == [*_of("FedAvg", "FedProx"), COTERIE]


def test_what_an_experiment_names_is_not_called_an_initialisation(tmp_path: Path) -> None:
    spd, soft = ({"algorithm": {"name": name, "n_clusters": 2}} for name in ("FedSPD", "FedSoft"))
    methods = [{**spd, "init": "soft", **GRAPH}, {**soft, "init": "random"}]
    assert _entries(_begun(tmp_path / "a", method=methods)) == [*_of("FedSoft", "FedSPD"), COTERIE]
    assert _entries(_begun(tmp_path / "b", stage=[soft, spd])) == [*_of("FedSoft", "FedSPD"), COTERIE]
    begun = _begun(tmp_path / "c", stage=[{**soft, "init": "warm-up"}, spd])
    assert _entries(begun) == [_first("FedAvg", "FedSoft"), *_of("FedSoft", "FedSPD"), COTERIE]


def test_client_selection_and_privacy(tmp_path: Path) -> None:
    average = {"algorithm": {"name": "FedAvg"}}
    by_loss = _begun(tmp_path / "a", participation={"fraction": 0.5, "select": "loss"}, **average)
    assert _entries(by_loss) == [*_of("FedAvg"), POWER_OF_CHOICE, COTERIE]
    per_cluster = {"fraction": 0.5, "select": "loss-per-cluster"}
    diverse = _begun(tmp_path / "b", participation=per_cluster, **average)
    assert _entries(diverse) == [*_of("FedAvg"), POWER_OF_CHOICE, KFed.bibtex, COTERIE]
    printed = _begun(tmp_path / "c", privacy={"mechanism": "paper", "epsilon": 1.0}, **average)
    assert _entries(printed) == [*_of("FedAvg", "FedSPD"), NOISE_ON_MODELS, COTERIE]
    counted = _begun(tmp_path / "d", privacy={"mechanism": "client", "noise": 1.0}, **average)
    assert _entries(counted) == [*_of("FedAvg"), COTERIE]  # clipping and noise have no one paper


@dataclass(frozen=True)
class Mine(FedAvg):
    """An algorithm of one's own."""


@pytest.mark.parametrize(
    ("algorithm", "settings", "entries"),
    [
        (FedAvg(), {}, _of("FedAvg")),
        (FedAvg(), {"participation": Participation(0.5, select="loss")}, [*_of("FedAvg"), POWER_OF_CHOICE]),
        (FedAvg(), {"privacy": Privacy("paper", epsilon=1.0)}, [*_of("FedAvg", "FedSPD"), NOISE_ON_MODELS]),
        (coterie.IFCA(2), {}, _of("WeCFL", "IFCA")),
        (Mine(), {}, []),
    ],
)
def test_a_run_made_in_python(
    algorithm: coterie.Algorithm,
    settings: dict[str, Any],
    entries: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    points = [(torch.randn(5, 3), torch.arange(5) % 2) for _ in range(4)]
    out = tmp_path / "run"
    coterie.run(torch.nn.Linear(3, 2), points, algorithm, rounds=4, out=out, **settings)
    assert _entries(out) == [*entries, COTERIE]
    assert ("Mine is none of coterie's algorithms" in caplog.text) == isinstance(algorithm, Mine)


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _begun(tmp_path / "run", algorithm={"name": "FedSoft", "n_clusters": 2})
    assert main(["cite", str(folder)]) == 0
    assert capsys.readouterr().out == citation(folder) + "\n"
    assert f"version={{{coterie.__version__}}}" in COTERIE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no experiment.toml; allowed is the folder of a run that was begun"),
        ("rounds = ", "is not TOML"),
        ("rounds = 3\n", "data is missing"),
        ('made = "in Python, by coterie.run"\nstages = ["what"]\n', "holds no whole run: a stage is 'what'"),
        ('made = "in Python, by coterie.run"\n', "holds no whole run"),
        ('made = "in Python, by coterie.run"\nstages = 3\n', "holds no whole run"),
    ],
)
def test_what_is_no_run_is_answered_in_one_sentence(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "experiment.toml").write_text(content)
    assert main(["cite", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"coterie: .*\n", said)
    assert message in said


def test_every_reference_is_bibtex() -> None:
    for entry in (COTERIE, NOISE_ON_MODELS, POWER_OF_CHOICE, KFed.bibtex, *_of("FedAvg", "FedSPD")):
        assert re.match(r"@\w+\{\w+,\n  title=\{", entry)
        assert entry.count("{") == entry.count("}")
        assert "\n\n" not in entry
