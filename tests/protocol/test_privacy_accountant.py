"""What privacy is promised, counted before the start, and said; and what is refused."""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import coterie
from coterie import (
    Algorithm,
    CoterieError,
    FedAvg,
    FedEM,
    FedSoft,
    Local,
    Participation,
    Privacy,
    Stage,
    Stages,
)
from coterie.backends.simulation import simulate
from coterie.cli.main import main
from coterie.experiment.experiment import parse
from coterie.protocol.privacy_accountant import AS_PRINTED, account, check, epsilon, not_covered, total
from tests.builders import algorithm, apart, clients, linear

CLIENT = Privacy(noise=0.3, importance_noise=0.2)
PAPER = Privacy("paper", epsilon=10.0, delta=0.01)


def exact(noises: list[tuple[float, int]], delta: float) -> float:
    """Gaussians compose to one (Dong et al. 2022), whose ε is known (Balle and Wang 2018, theorem 8)."""
    mu = math.sqrt(sum(times / noise**2 for noise, times in noises))

    def too_much(e: float) -> float:
        return float(norm.cdf(mu / 2 - e / mu) - math.exp(e + norm.logcdf(-mu / 2 - e / mu))) - delta

    return float(brentq(too_much, 0, mu * mu / 2 + 40 * mu))


@pytest.mark.parametrize(
    "noises", [[(1.0, 1)], [(5.0, 100)], [(0.5, 20)], [(20.0, 10), (7.0, 5)], [(3.0, 1000), (1.5, 50)]]
)
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_epsilon_is_the_closed_form_of_composed_gaussians(
    noises: list[tuple[float, int]], delta: float
) -> None:
    found, expected = epsilon(noises, delta), exact(noises, delta)
    assert expected <= found * (1 + 1e-7)  # never less ...
    assert found == pytest.approx(expected, rel=1e-3)  # ... and hardly more


def test_epsilon_against_other_bounds() -> None:
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    found = epsilon([(4.0, 50)], 1e-5)
    assert found < RdpAccountant().compose(GaussianDpEvent(4.0), 50).get_epsilon(1e-5)
    rho = 50 / (2 * 4.0**2)  # zero-concentrated privacy (Bun and Steinke 2016)
    assert found < rho + 2 * math.sqrt(rho * math.log(1e5))
    assert epsilon([(1.0, 1)], 1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon([(1e-8, 1)], 1e-5) == math.inf
    assert 0 < epsilon([(1e5, 1)], 1e-9) < 1e-4
    assert epsilon([], 1e-5) == epsilon([(math.inf, 9), (1.0, 0)], 1e-5) == 0


def private(algorithm: coterie.Algorithm, rounds: int = 50, **settings: Any) -> Stage:
    return Stage(algorithm, rounds, privacy=Privacy(**{"noise": 5.0, **settings}))


def named(name: str) -> Algorithm:
    return FedEM(2, weights="mass") if name == "FedEM by mass" else algorithm(name)


def test_every_message_of_the_planned_rounds_is_counted() -> None:
    assert total([private(FedAvg())]) == pytest.approx(exact([(5.0, 50)], 1e-5), rel=1e-4)
    assert total([private(FedAvg(), neighbour="replaced")]) == pytest.approx(
        exact([(2.5, 50)], 1e-5), rel=1e-4
    )
    soft = private(FedSoft(2, refresh=4), importance_noise=3.0)  # reports in rounds 0, 4, ..., 48
    assert total([soft]) == pytest.approx(exact([(5.0, 50), (3.0, 13)], 1e-5), rel=1e-4)
    mixture = private(FedEM(2, weights="mass"), importance_noise=3.0)
    assert total([mixture]) == pytest.approx(exact([(5.0, 50), (3.0, 50)], 1e-5), rel=1e-4)
    assert total([private(FedEM(2))]) == total([private(FedAvg())])  # the size is withheld
    both = total([soft, private(FedEM(2, weights="mass"), 10, importance_noise=3.0)])
    assert both == pytest.approx(exact([(5.0, 60), (3.0, 23)], 1e-5), rel=1e-4)
    few = Stage(FedAvg(), 50, participation=coterie.Participation(fraction=0.1), privacy=Privacy(noise=5.0))
    assert total([few]) == total([private(FedAvg())])  # no amplification
    assert total([private(Local())]) == 0
    assert total([private(FedAvg(), rounds=0)]) == 0


@pytest.mark.parametrize(
    ("name", "settings", "open"),
    [
        ("FedAvg", {}, []),
        ("FedAvg", {"size": "sent"}, ["size"]),
        ("FedAvg", {"buffers": "sent"}, ["buffers"]),
        ("FedAvg", {"noise": 0.0}, ["row"]),
        ("FedSoft", {}, ["importance"]),
        ("FedSoft", {"importance_noise": 1.0}, []),
        ("FedEM", {}, []),
        ("FedEM", {"size": "sent"}, ["size"]),
        ("FedEM by mass", {}, ["mass"]),
        ("FedEM by mass", {"importance_noise": 1.0}, []),
        ("FedEM by mass", {"importance_noise": 1.0, "size": "sent"}, ["mass"]),
        ("IFCA", {"importance_noise": 1.0}, ["choice"]),
        ("FedSPD", {"importance_noise": 1.0, "size": "sent"}, ["drew"]),
        ("CFL", {}, []),
        ("Local", {"size": "sent", "buffers": "sent"}, []),
    ],
)
def test_what_is_not_covered_is_listed_and_then_there_is_no_total(
    name: str, settings: dict[str, Any], open: list[str]
) -> None:
    found = account([private(named(name), **settings)])
    assert found is not None
    assert found["stages"][0]["not_covered"] == open
    assert (found["epsilon"] is None) == bool(open)
    assert (
        f"no total ε: {', '.join(open)} {'is' if len(open) == 1 else 'are'} not covered" in found["says"]
        or not open
    )


@pytest.mark.parametrize(
    ("name", "settings", "noises", "label"),
    [
        ("FedAvg", {}, [(5.0, 1)], "per message, of row"),
        ("IFCA", {}, [(5.0, 1)], "per message, of row"),  # given its choice, which is not covered
        ("CFL", {"neighbour": "replaced"}, [(2.5, 1)], "per message, of update"),
        ("FedEM", {"importance_noise": 2.0}, [(5.0, 1)], "per message, of row"),
        ("FedEM by mass", {"importance_noise": 2.0}, [(5.0, 1), (2.0, 1)], "per message, of row and mass"),
        ("FedAvg", {"noise": 0.0}, [], None),
        ("Local", {}, [], None),
    ],
)
def test_epsilon_of_one_message(
    name: str, settings: dict[str, Any], noises: list[tuple[float, int]], label: str | None
) -> None:
    found = account([private(named(name), **settings)])
    assert found is not None
    one = found["stages"][0]
    assert one["label"] == label
    expected = pytest.approx(exact(noises, 1e-5), rel=1e-4) if noises else None
    assert one["epsilon_per_message"] == expected
    assert ("per message" in found["says"]) == bool(noises)


def test_a_stage_without_privacy_leaves_no_total() -> None:
    found = account([private(FedAvg()), Stage(FedAvg(), 5)])
    assert found is not None
    assert found["epsilon"] is None
    assert found["says"].endswith(
        ", then none, at most 5 messages of a client; no total ε: row, size are not covered"
    )
    alone = account([private(FedAvg()), Stage(Local(), 5)])
    assert alone is not None
    assert alone["epsilon"] == pytest.approx(exact([(5.0, 50)], 1e-5), rel=1e-4)
    assert account([Stage(FedAvg(), 5)]) is None


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"until": "separated"}, "separation"),
        ({"n_init": 2}, "separation"),
        ({"participation": Participation(fraction=0.5, select="size")}, "selection"),
    ],
)
def test_what_clients_send_beside_an_algorithm_that_sends_nothing_leaves_no_total(
    settings: dict[str, Any], missing: str
) -> None:
    private = Stage(FedAvg(), 3, privacy=Privacy(noise=5.0))
    assert total(Stage(Local(), 2).then(private)) is not None
    first = Stage(Local(), 2, **settings)
    assert not_covered(first) == [missing]
    assert total(first.then(private)) is None


def test_the_paper_s_epsilon_is_labelled() -> None:
    found = account([Stage(algorithm("FedSPD"), 7, privacy=PAPER)])
    assert found is not None
    assert AS_PRINTED == "per message, as printed, not a guarantee above 1"
    assert found["stages"][0] == {
        "mechanism": "paper",
        "epsilon_per_message": 10.0,
        "label": AS_PRINTED,
        "messages": 7,
        "not_covered": ["drew", "row"],
    }
    assert found["epsilon"] is None
    assert found["says"] == (
        "paper, at most 7 messages of a client, ε = 10 at δ = 0.01 (per message, as printed, not a guarantee above 1); "
        "no total ε: drew, row are not covered"
    )


# refusals


def test_a_target_that_the_planned_rounds_exceed_is_refused_before_the_start(tmp_path: Path) -> None:
    asked = {"noise": 5.0, "target_epsilon": 2.0}
    with pytest.raises(CoterieError) as refused:
        coterie.run(linear, clients(), FedAvg(), privacy=Privacy(**asked), out=tmp_path / "run")
    message = str(refused.value)
    spent = f"{exact([(5.0, 50)], 1e-5):.4g}"
    assert message.startswith(
        f"target_epsilon is 2.0, but the planned rounds come to ε = {spent} at δ = 1e-05; "
    )
    assert not (tmp_path / "run").exists()
    found = re.search(r"at most (\d+) rounds, or noise = ([\d.]+)$", message)
    assert found is not None
    rounds, noise = int(found[1]), float(found[2])
    assert exact([(5.0, rounds)], 1e-5) <= 2.0 < exact([(5.0, rounds + 1)], 1e-5)
    less = (noise - 0.1) * 0.999  # it is the least to a thousandth, then rounded up to three digits
    assert exact([(noise, 50)], 1e-5) <= 2.0 < exact([(less, 50)], 1e-5)
    for fits in (private(FedAvg(), rounds, **asked), private(FedAvg(), **{**asked, "noise": noise})):
        simulate(linear, clients(), Stages((fits,)))
    with pytest.raises(CoterieError, match="planned rounds come to"):
        apart(linear, clients(), Stages((private(FedAvg(), **asked),)))


def test_a_target_for_several_stages_or_for_what_is_not_covered() -> None:
    two = Stages((private(FedAvg(), target_epsilon=7.0), private(FedAvg())))
    with pytest.raises(CoterieError, match=r"ε = 9\.\d+ at .* allowed is noise 1\.\d+ times as high"):
        simulate(linear, clients(), two)
    simulate(linear, clients(), Stages((private(FedAvg(), target_epsilon=7.0),)))
    with pytest.raises(
        CoterieError, match=r"target_epsilon is 7\.0, but there is no total ε: choice is not covered"
    ):
        simulate(linear, clients(), Stages((private(coterie.IFCA(2), target_epsilon=7.0),)))
    with pytest.raises(CoterieError, match=r"target_epsilon is 0\.001, .* allowed is noise = "):
        simulate(linear, clients(), Stages((private(FedAvg(), target_epsilon=0.001),)))


def test_the_lowest_target_of_several_stages_counts() -> None:
    noise = Privacy(noise=5.0, target_epsilon=100.0)
    high = Stage(FedAvg(), 5, privacy=noise)
    low = Stage(FedAvg(), 5, privacy=replace(noise, target_epsilon=1.0))
    check(Stages((high, high)))
    for stages in (high.then(low), low.then(high)):
        with pytest.raises(CoterieError, match=r"target_epsilon is 1\.0, but the planned rounds"):
            check(stages)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"delta": 1e-6}, "^delta is 1e-06 and 1e-05 in one run; allowed is one for all stages"),
        ({"neighbour": "replaced"}, "^neighbour differs between stages"),
    ],
)
def test_stages_of_one_run_are_counted_alike(other: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        simulate(linear, clients(), Stages((private(FedAvg()), private(FedAvg(), **other))))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "^noise is None; allowed is a number above 0, with mechanism = 'client'"),
        ({"noise": -1.0}, "^noise is -1.0"),
        ({"noise": 1.0, "clip": 0.0}, "^clip is 0.0; allowed is above 0"),
        ({"noise": 1.0, "clip": math.inf}, "^clip is inf; .* finite where there is noise"),
        ({"noise": 1.0, "delta": 0.0}, "^delta is 0.0; allowed is above 0 and below 1"),
        ({"noise": 1.0, "epsilon": 3.0}, "^epsilon is 3.0; allowed is none with 'client'"),
        ({"noise": 1.0, "importance_noise": 0.0}, "^importance_noise is 0.0; allowed is above 0"),
        ({"noise": 1.0, "target_epsilon": -2.0}, "^target_epsilon is -2.0"),
        ({"noise": 1.0, "size": "secret"}, "^size is 'secret'; allowed is one of 'withheld', 'sent'"),
        ({"mechanism": "paper"}, "^epsilon is None; allowed is a number above 0, with mechanism = 'paper'"),
        ({"mechanism": "paper", "epsilon": 0.0}, "^epsilon is 0.0"),
        ({"mechanism": "paper", "epsilon": 1.0, "noise": 1.0}, "^noise is 1.0; allowed is none with 'paper'"),
        (
            {"mechanism": "paper", "epsilon": 1.0, "target_epsilon": 9.0},
            "^target_epsilon is 9.0; allowed is none",
        ),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Privacy(**wrong)


def test_privacy_beside_stages_is_refused_not_forgotten() -> None:
    with pytest.raises(CoterieError, match="privacy is given beside stages"):
        coterie.run(linear, clients(), Stage(FedAvg(), 1), privacy=CLIENT)


def test_without_the_accountant_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(
        CoterieError, match=r"dp-accounting, which is not installed; pip install 'coterie\[privacy\]'"
    ):
        simulate(linear, clients(), Stages((Stage(FedAvg(), 1, privacy=CLIENT),)))
    simulate(linear, clients(), Stages((Stage(FedAvg(), 1, privacy=PAPER),)))  # which counts nothing


# in a file

FILE: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "regressions", "clients": 4, "sizes": [8, 9], "test_points": 4},
    "model": {"name": "linear"},
}


def test_in_a_file_inner_tables_go_before_outer_ones() -> None:
    methods = [
        {"label": "as the file", "algorithm": {"name": "FedAvg"}},
        {"label": "more", "algorithm": {"name": "FedAvg"}, "privacy": {"clip": 2.0}},
        {
            "label": "paper",
            "algorithm": {"name": "FedAvg"},
            "privacy": {"mechanism": "paper", "epsilon": 10.0},
        },
        {"label": "open", "algorithm": {"name": "FedAvg"}, "privacy": {"mechanism": "none"}},
    ]
    found = parse({**FILE, "privacy": {"noise": 3.0}, "method": methods})
    privacies = [method.stages[0].privacy for method in found.methods]
    assert privacies == [
        Privacy(noise=3.0),
        Privacy(noise=3.0, clip=2.0),
        Privacy("paper", epsilon=10.0),
        None,
    ]
    again = parse(tomllib.loads(found.resolved()))
    assert [method.stages for method in again.methods] == [method.stages for method in found.methods]


def test_what_is_wrong_in_a_file_is_named() -> None:
    def refused(privacy: dict[str, Any], **other: Any) -> str:
        with pytest.raises(CoterieError) as problem:
            parse({**FILE, "algorithm": {"name": "FedAvg"}, **other, "privacy": privacy}).prepare()
        return str(problem.value)

    assert refused({"noise": "much"}).startswith("privacy.noise is 'much'; allowed is a number")
    assert refused({"clip": 1.0}).startswith("privacy.noise is None")
    assert refused({"nois": 1.0}).startswith("privacy.nois is not a known key, the nearest is 'noise'")
    too_much = refused({"noise": 1.0, "target_epsilon": 1.0}, rounds=40)
    assert too_much.startswith("privacy.target_epsilon is 1.0, but the planned rounds come to ε = ")


def test_the_command_line_says_what_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "private.toml"
    file.write_text(
        'rounds = 2\ndata = { source = "regressions", clients = 4, sizes = [8, 9], test_points = 4 }\n'
        'model = { name = "linear" }\n'
        '[[method]]\nlabel = "A"\nalgorithm = { name = "FedAvg" }\nprivacy = { noise = 5.0 }\n'
        '[[method]]\nlabel = "B"\nalgorithm = { name = "FedSPD", n_clusters = 2 }\n'
        'privacy = { mechanism = "paper", epsilon = 10.0, delta = 0.01 }\n'
        '[[method]]\nlabel = "C"\nalgorithm = { name = "FedAvg" }\n'
    )
    assert main(["run", str(file), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "privacy of A: client, at most 2 messages of a client, ε = 0.7" in said
    assert "; total ε = 1.0" in said
    assert "privacy of B: paper" in said
    assert "ε = 10 at δ = 0.01 (per message, as printed, not a guarantee above 1); no total ε" in said
    assert "privacy of C" not in said
    summary = json.loads((tmp_path / "out" / "A" / "summary.json").read_text())
    assert summary["privacy"]["epsilon"] == pytest.approx(exact([(5.0, 2)], 1e-5), rel=1e-4)
    assert "privacy" not in json.loads((tmp_path / "out" / "C" / "summary.json").read_text())
