"""A client that diverges is named with its data; a run in which most do, or nobody is heard, is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import coterie
from coterie import toml
from coterie.cli.main import main
from coterie.cli.run import DIVERGED
from coterie.protocol.message import Messages
from coterie.protocol.participation import Participation
from coterie.runs.divergence import PATIENCE, Divergence
from coterie.runs.folder import RunFolder
from coterie.runs.recorder import GOOD

Data = dict[str, tuple[torch.Tensor, torch.Tensor]]


def clients(n: int = 6) -> Data:
    g = torch.Generator().manual_seed(0)
    found = {}
    for i in range(n):
        x = torch.randn(30, 3, generator=g)
        found[f"c{i}"] = x, x.sum(1) + 0.1 * torch.randn(30, generator=g)
    return found


def model() -> nn.Module:
    return nn.Linear(3, 1)


@pytest.mark.parametrize("topology", [coterie.Server(), coterie.Graph("complete")], ids=["server", "graph"])
def test_bad_data_is_not_blamed_on_the_rate(topology: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = clients()
    data["c4"] = (data["c4"][0] * 1e25, data["c4"][1])
    run = coterie.run(model, data, coterie.FedAvg(), rounds=5, topology=topology)
    (said,) = [line for line in caplog.messages if "diverged in round" in line]
    assert said.startswith(
        "client 'c4' diverged in round 1: its model is not finite (its largest input is 2."
    )
    assert "e+25 and its largest label" in said
    assert said.endswith("its data is out of scale")
    assert "learning_rate" not in caplog.text
    assert "stopped" not in run.summary
    assert all(one.isfinite().all() for one in run.centers[0].state_dict().values())


@pytest.mark.parametrize("topology", [coterie.Server(), coterie.Graph("complete")], ids=["server", "graph"])
@pytest.mark.parametrize("algorithm", [coterie.FedAvg(), coterie.IFCA(2), coterie.FedEM(2)], ids=str)
def test_a_finite_explosion_stops_the_run_at_its_last_good_centers(
    algorithm: Any, topology: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With such a rate losses grow a thousandfold a round, and are finite for many."""
    how = {
        "training": coterie.Training(learning_rate=1.1, batch_size=5),
        "topology": topology,
        "init": "random",
    }
    run = coterie.run(model, clients(), algorithm, rounds=50, **how)
    assert run.summary["stopped"]["says"].startswith("The run diverged: in round ")
    advice = "Try a smaller learning_rate. The last good centers were kept."
    assert run.summary["stopped"]["says"].endswith(advice)
    assert run.summary["stopped"]["rounds"] == len(run.records) < 15
    assert "a smaller learning_rate may help" in caplog.text
    assert ": its loss grew to " in caplog.text
    x, y = clients()["c0"]
    assert min(float((one.predict(x) - y).square().mean()) for one in run.centers) < 100
    if run.verdict is not None:
        assert run.verdict.findings == ("diverged",)


def test_a_run_that_goes_well_is_let_be(caplog: pytest.LogCaptureFixture) -> None:
    run = coterie.run(model, clients(), coterie.IFCA(2), rounds=5)
    assert "stopped" not in run.summary
    assert "diverged" not in caplog.text


def test_under_privacy_nobody_is_asked_about_data(caplog: pytest.LogCaptureFixture) -> None:
    data = clients()
    data["c4"] = (data["c4"][0] * 1e25, data["c4"][1])
    coterie.run(model, data, coterie.FedAvg(), rounds=2, privacy=coterie.Privacy(clip=1.0, noise=0.1))
    assert "largest input" not in caplog.text


def test_under_privacy_a_large_loss_has_not_diverged() -> None:
    """Nobody may be asked what a guess would have: a client's first loss stands in."""
    data = {name: (x, y + 300) for name, (x, y) in clients().items()}
    private = coterie.Privacy(clip=1.0, noise=0.1)
    run = coterie.run(model, data, coterie.FedAvg(), rounds=2, privacy=private)
    assert run.summary["personal"]["loss"] > 1e4
    assert "stopped" not in run.summary


@pytest.mark.parametrize("folder", [None, "r"])
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_client_that_spoils_the_centers_at_once_is_named_and_blamed(
    rounds: int, folder: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One step with inputs of 1e18: its first loss is as huge as all others, and the centers are lost for everybody."""
    g = torch.Generator().manual_seed(0)
    data: Data = {}
    for i in range(6):
        x = torch.randn(10, 3, generator=g)
        data[f"c{i}"] = x * (1e18 if i == 4 else 1), (x[:, 0] > 0).long()
    federation = coterie.data.from_arrays(data, test_fraction=0.3)
    out = tmp_path / folder if folder else None
    run = coterie.run(lambda: nn.Linear(3, 2), federation, coterie.FedAvg(), rounds=rounds, out=out)
    named = [line for line in caplog.messages if "diverged in round" in line]
    assert named[0].startswith("client 'c4' diverged in round 1: its loss is ")
    assert named[0].endswith("its data is out of scale")
    assert all(line.endswith("; look at the data of 'c4'") for line in named[1:])
    says = run.summary["stopped"]["says"]
    assert "Look at the data of 'c4', which is out of scale. The last good centers were kept." in says
    assert run.summary["personal"]["loss"] < 1e18  # those of before
    where = "at the end, on held-out points, " if rounds == 1 else f"in round {rounds} "
    assert says.startswith(f"The run diverged: {where}")
    assert max(float(one.abs().max()) for one in run.centers[0].state_dict().values()) < 1  # as it began


EXPERIMENT: dict[str, Any] = {
    "rounds": 30,
    "checkpoint_every": 2,
    "data": {"source": "regressions", "clients": 6, "sizes": [20, 30], "dimension": 3},
    "model": "linear",
    "training": {"learning_rate": 1.5, "batch_size": 5},
    "method": [{"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "IFCA", "n_clusters": 2}}],
}


def test_the_command_has_an_exit_code_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(toml.write(EXPERIMENT))
    assert main(["run", "e.toml", "--out", "r"]) == DIVERGED == 3
    assert "FedAvg: The run diverged: in round " in capsys.readouterr().out
    assert main(["resume", "r"]) == DIVERGED  # there is no more to be done
    assert len(RunFolder(Path("r/FedAvg")).records()) < 30


def test_a_run_that_was_interrupted_ends_alike(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "rounds": 30,
        "training": coterie.Training(learning_rate=1.1, batch_size=5),
        "checkpoint_every": 2,
    }
    whole = coterie.run(model, clients(), coterie.FedAvg(), out=tmp_path / "whole", **how)

    def stop(record: dict[str, Any], _: int) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.run(model, clients(), coterie.FedAvg(), out=tmp_path / "r", watch=stop, **how)
    again = coterie.run(model, clients(), coterie.FedAvg(), out=tmp_path / "r", resume=True, **how)
    assert again.summary == whole.summary
    for name in ("result.safetensors", "summary.json"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("every", [1, 2])
def test_what_is_gone_back_to_does_not_depend_on_checkpoints(every: int, tmp_path: Path) -> None:
    how = {"rounds": 30, "training": coterie.Training(learning_rate=1.1, batch_size=5)}
    alone = coterie.run(model, clients(), coterie.FedAvg(), **how)
    kept = coterie.run(model, clients(), coterie.FedAvg(), out=tmp_path / "r", checkpoint_every=every, **how)
    assert kept.summary["personal"] == alone.summary["personal"]


# what counts


def watcher(n: int = 4, guess: float = 1.0) -> Divergence:
    fields = {"guess": torch.full((n,), guess), "input": torch.ones(n), "target": torch.ones(n)}
    return Divergence([f"c{i}" for i in range(n)], lambda: Messages(torch.arange(n), fields))


def told(losses: list[float]) -> Messages:
    return Messages(torch.arange(len(losses)), {"loss": torch.tensor(losses)})


NOBODY = torch.arange(0)


def test_most_must_diverge_for_some_rounds() -> None:
    seen = watcher()
    seen.played(1, told([1.0] * 4), told([1.0] * 4), NOBODY, counts=True)
    for number in range(2, 2 + PATIENCE):
        assert seen.stop is None
        half = told([1e7, 1e7, 1.0, 1.0])
        seen.played(number, half, half, NOBODY, counts=True)
    assert seen.stop is None  # not most
    most = told([1e7, 1e7, 1e7, 1.0])
    for number in range(10, 10 + PATIENCE):
        seen.played(number, most, most, NOBODY, counts=False)
    assert seen.stop is None  # an attempt of several
    for number in range(20, 20 + PATIENCE):
        seen.played(number, most, most, NOBODY, counts=True)
    assert seen.stop is not None
    assert "3 of 4 clients" in seen.stop.says


def test_a_loss_that_was_small_at_first_may_grow() -> None:
    seen = watcher(guess=1.0)
    for number, loss in enumerate((1e-8, 1e-3, 0.5, 2.0)):
        here = told([loss] * 4)
        seen.played(number, here, here, NOBODY, counts=True)
    assert seen.in_a_row == 0


def test_a_run_that_exploded_in_its_first_round_has_not_ended_well() -> None:
    seen = watcher(guess=1.0)
    here = told([3e28] * 4)
    seen.played(1, here, here, NOBODY, counts=True)
    assert seen.stop is None
    seen.at_the_end(1)
    assert seen.stop is not None


def test_nobody_heard_for_several_rounds() -> None:
    seen = watcher()
    for number in range(4):
        seen.heard(False, number, Participation())
    assert seen.stop is None
    seen.heard(True, 4, Participation())
    for number in range(5):
        seen.heard(False, number, Participation(absent=0.9))  # which may well be
    assert seen.stop is None
    seen.heard(False, 10, Participation())
    assert seen.stop is not None
    assert "nobody was heard in the last 6" in seen.stop.says


def test_nobody_was_ever_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which is no chance, with so many absent, and yet no run to learn from."""
    monkeypatch.chdir(tmp_path)
    asked = {**EXPERIMENT, "rounds": 4, "training": {"learning_rate": 0.01, "batch_size": 5}}
    Path("e.toml").write_text(toml.write({**asked, "participation": {"absent": 0.999999}}))
    assert main(["run", "e.toml", "--out", "r"]) == DIVERGED
    says = "Nobody was heard in any of the 4 rounds, so nothing was learned. Lower absent or stragglers."
    printed = capsys.readouterr()
    assert says in printed.err
    assert f"IFCA, not good: {says}\n" in printed.out


def test_those_beyond_the_first_few_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    data = {name: (x * 1e25, y) if name < "c8" else (x, y) for name, (x, y) in clients(10).items()}
    run = coterie.run(model, data, coterie.FedAvg(), rounds=5)
    named = [line for line in caplog.messages if line.startswith("client ")]
    assert len(named) == 5
    assert "3 more clients diverged in round 1" in caplog.messages
    says = run.summary["stopped"]["says"]
    assert says.startswith("The run diverged: in round 3 8 of 10 clients had a loss")
    assert "kept" not in says  # there were no good ones


def test_good_centers_of_a_server_are_read_back_over_a_graph(tmp_path: Path) -> None:
    """Its first round climbs and does not explode: a checkpoint of the graph has the server's centers to go back to."""
    rough = coterie.Training(learning_rate=1.1, batch_size=5)
    stages = (
        coterie.Stage(coterie.FedAvg(), 3, coterie.Training(learning_rate=0.1, epochs=5)),
        coterie.Stage(coterie.FedAvg(), 2, rough, coterie.Graph("complete")),
    )

    def stop(record: dict[str, Any], _: int) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    how: dict[str, Any] = {"out": tmp_path / "r", "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        coterie.run(model, clients(), stages, watch=stop, **how)
    saved = RunFolder(tmp_path / "r").checkpoint()
    assert saved is not None
    assert len(saved[0][GOOD]) == 1 < len(saved[0]["centers"])
    again = coterie.run(model, clients(), stages, resume=True, **how)
    assert len(again.records) == 5
