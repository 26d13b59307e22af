"""What users are told in odd cases: in a sentence, by name, in good grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import coterie
from coterie import CoterieError, toml
from coterie.cli.console import show_table
from coterie.cli.main import main
from coterie.cli.run import DIVERGED
from coterie.report import tables
from coterie.runs.alarms import Alarms
from coterie.runs.folder import RunFolder
from coterie.runs.verdict import concluded


def clients(n: int = 4) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)
    return {f"c{i}": (torch.randn(12, 3, generator=g), torch.randn(12, generator=g)) for i in range(n)}


def linear() -> nn.Module:
    return nn.Linear(3, 1)


def test_more_clusters_than_clients(caplog: pytest.LogCaptureFixture) -> None:
    for algorithm in (coterie.IFCA(5), coterie.WeCFL(5)):
        with pytest.raises(CoterieError, match="n_clusters is 5; allowed is up to 4, the number of clients"):
            coterie.run(linear, clients(), algorithm, rounds=1)
    assert len(coterie.run(linear, clients(), coterie.FedEM(5), rounds=1, init="random").centers) == 5
    assert "there are 5 clusters and 4 clients" in caplog.text


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(x))


def test_predict_of_a_table_of_words_and_of_unknown_tokens() -> None:
    pandas = pytest.importorskip("pandas")
    run = coterie.run(linear, clients(), coterie.FedAvg(), rounds=1)
    x = clients()["c0"][0]
    table = pandas.DataFrame(x.numpy(), columns=list("abc"))
    torch.testing.assert_close(run.centers[0].predict(table), run.centers[0].predict(x))
    with pytest.raises(CoterieError, match="x is a DataFrame that holds other things than numbers"):
        run.centers[0].predict(table.assign(a="word"))
    with pytest.raises(CoterieError, match=r"the model does not take x of shape \(12, 2\) \("):
        run.centers[0].predict(x[:, :2])
    text = np.random.default_rng(0).integers(0, 7, (12, 5))
    data = coterie.data.from_arrays([(text, text)] * 3, task="next-character")
    spoken = coterie.run(Tokens, data, coterie.FedAvg(), rounds=1)
    with pytest.raises(CoterieError, match=r"does not take x of shape \(1, 5\) \(.*no other tokens"):
        spoken.centers[0].predict(np.full((1, 5), 9))


@pytest.mark.parametrize(("number", "says"), [(1, "1 of 12 clients has no"), (2, "2 of 12 clients have no")])
def test_one_client_has_and_two_have(number: int, says: str) -> None:
    numbers = {
        "clients_asked": 12,
        "ambiguous": number,
        "misfits": number,
        "still_differ": number,
        "gain": 0.5,
    }
    numbers |= {"centers": 2, "groups": 2, "loss": 0.1, "loss_of_one_model": 0.8}
    said = concluded(("ambiguous",), {**numbers, "one_model": "the mean of the centers"}).sentences
    assert any(says in sentence for sentence in said)


def test_an_initialisation_is_called_one(caplog: pytest.LogCaptureFixture) -> None:
    first, last = coterie.Stage(coterie.WeCFL(2), 3), coterie.Stage(coterie.FedEM(2), 5)
    Alarms().stage_ended(first, [last], separated=False)
    Alarms().stage_ended(first, [], separated=False)
    assert caplog.messages[0].startswith(
        "the initialisation of FedEM (by WeCFL) did not separate the centers in 3"
    )
    assert caplog.messages[1].startswith("WeCFL did not separate the centers in 3 rounds")


SMALL: dict[str, Any] = {
    "rounds": 1,
    "data": {"source": "gaussians", "clients": 6, "sizes": [6, 8], "dimension": 3, "distribution_points": 20},
    "model": "linear",
    "algorithm": {"name": "IFCA", "n_clusters": 2},
}


def test_a_folder_of_runs_names_them_and_a_bad_run_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(toml.write(SMALL))
    for name in ("a", "b"):
        assert main(["run", "e.toml", "--out", f"all/{name}"]) == 0
    capsys.readouterr()
    assert main(["show", "all"]) == 2
    assert "all holds no run; allowed is a folder" in (said := capsys.readouterr().err)
    assert said.endswith(": all/a, all/b\n")
    store = RunFolder(Path("all/a"))
    verdict = {"good": False, "findings": [], "sentences": ["It is all in vain."], "numbers": {}}
    store.write_summary({**store.summary(), "verdict": verdict})
    Path("new.csv").write_text("p,q,r,y\n" + "0.1,0.2,0.3,1\n0.3,0.2,0.1,0\n" * 3)
    assert main(["onboard", "all/a", "new.csv"]) == 0
    assert "the run that this client joins is not good: It is all in vain." in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 20])
def test_no_number_or_word_of_a_table_is_broken(width: int) -> None:
    numbers = {
        "accuracy on 1": 0.8125,
        "importance error": 0.25,
        "personal accuracy": 0.71875,
        "MB sent": 1234.5,
    }
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as captured:
        show_table(console, tables.end_of_run({"FedSoft": numbers, "IFCA": numbers}, width))
    for whole in ("0.812", "0.250", "0.719", "1234.5", "importance", "personal", "FedSoft"):
        assert whole in captured.get()


def test_a_column_with_nothing_in_it_is_shown() -> None:
    console = Console(width=60, force_terminal=False)
    for rows in ([], [("a", "")]):
        table = Table("name", "")
        for row in rows:
            table.add_row(*row)
        with console.capture() as captured:
            show_table(console, table)
        assert all(name in captured.get() for name, _ in rows)


@pytest.mark.parametrize("width", [60, 20])
def test_nor_of_those_of_data_and_clustering(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = {"source": "digits", "clients": 5, "train_points": 12, "distributions": "rotate", "clusters": 2}
    (tmp_path / "e.toml").write_text(toml.write({**EXPERIMENT, "data": digits}))
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "fashion_mnist.npz").write_bytes(b"")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "sets"))
    devices = tmp_path / "devices"
    devices.mkdir()
    for name in "ab":
        (devices / f"{name}.csv").write_text("p,q\n1,2\n3,4\n9,8\n")
    console = Console(width=width, force_terminal=False)
    for module in ("data", "cluster", "algorithms"):
        monkeypatch.setattr(f"coterie.cli.{module}.open_console", lambda *_: console)
    cluster = ["cluster", str(devices), "--clusters", "2", "--out", str(tmp_path / "l.csv")]
    for command, words in (
        (["data", "show", str(tmp_path / "e.toml")], ["distribution", "50% 50%", "classes", "8 of 10"]),
        (cluster, ["separation", "features"]),
        (["data"], ["fashion-mnist", "licence", "fashion_mnist.npz"]),
        (["algorithms"], ["FedSPD", "settings"]),
    ):
        with console.capture() as captured:
            assert main(command) == 0
        for word in words:
            assert word in captured.get(), (word, captured.get())


EXPERIMENT: dict[str, Any] = {
    "rounds": 1,
    "data": {"source": "gaussians", "clients": 3, "sizes": [4, 6], "dimension": 3, "distribution_points": 20},
    "model": "linear",
    "algorithm": {"name": "FedAvg"},
}


def test_a_long_value_is_not_said_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = "9" * 5000
    path = tmp_path / "e.toml"
    path.write_text(toml.write(EXPERIMENT))
    for change in (["--seed", digits], ["--set", f"seed={digits[:4000]}"], ["--set", f"name={digits}"]):
        assert main(["run", str(path), "--out", str(tmp_path / "r"), *change]) == 2
        said = capsys.readouterr().err
        assert "999..." in said or "exceeded maximum size" in said  # pydantic's and typer's own
        assert len(said) < 600


def test_every_limit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "e.toml"
    path.write_text(toml.write({**EXPERIMENT, "threads": 100_000}))
    assert main(["run", str(path)]) == 2
    assert "threads is 100000; allowed is a whole number from 1 to 1024" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "settings", "says"),
    [
        (
            "training",
            {"learning_rate": 1e39},
            "training.learning_rate is 1e+39; allowed is above 0 and at most 1e+30",
        ),
        ("training", {"weight_decay": 1e300}, "training.weight_decay is 1e+300; allowed is from 0 to 1e+30"),
        (
            "algorithm",
            {"name": "pFedMe", "server_step": 1e39},
            "algorithm.server_step is 1e+39; allowed is above 0",
        ),
        (
            "algorithm",
            {"name": "FedSPD", "n_clusters": 2, "final_rate": 1e300},
            "final_rate is 1e+300; allowed is",
        ),
        (
            "data",
            {**EXPERIMENT["data"], "separation": 1e300},
            "separation is 1e+300; allowed is a number of standard",
        ),
        (
            "privacy",
            {"clip": 1.0, "noise": 1e-300},
            "privacy.noise is 1e-300; allowed is 0, or 1e-09 or more",
        ),
    ],
)
def test_numbers_that_cannot_be_computed_with(
    section: str, settings: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "e.toml"
    path.write_text(toml.write({**EXPERIMENT, section: settings}))
    assert main(["run", str(path), "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_final_rate_may_be_as_large_as_a_rate(tmp_path: Path) -> None:
    """Of two that are allowed the product is too."""
    algorithm = {"name": "FedSPD", "n_clusters": 2, "final_rate": 1e30}
    path = tmp_path / "e.toml"
    path.write_text(toml.write({**EXPERIMENT, "training": {"learning_rate": 1e30}, "algorithm": algorithm}))
    assert main(["run", str(path), "--out", str(tmp_path / "r")]) in (0, DIVERGED)


def test_a_regression_has_no_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"source": "regressions", "clients": 3, "sizes": [4, 6], "dimension": 3}
    path = tmp_path / "e.toml"
    path.write_text(toml.write({**EXPERIMENT, "data": data}))
    assert main(["data", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "train" in shown
    assert "class" not in shown


def test_a_section_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "e.toml"
    path.write_text(toml.write({**EXPERIMENT, "model": {"name": "mlp", "hidden": [10**7, 10**7]}}))
    assert main(["run", str(path)]) == 2
    assert "coterie: model: the model 'mlp' with these settings would take" in capsys.readouterr().err
