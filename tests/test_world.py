"""Two processes under torchrun do what one does; one that is killed ends the run, which goes on from there."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coterie.shards import dealt
from tests.world_plays import play, plays

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MEANS = (
    "FedAvg",
    "FedProx",
    "FedAvg+",
    "FedProx+",
    "IFCA",
    "HypCluster",
    "FedEM",
    "pFedMe",
    "FedSoft",
    "FedSPD",
)


def test_clients_are_dealt_out_by_work() -> None:
    # 9 | 7, 6 to the smaller, 4 to 9 (9 against 13), 3 to 13 (13 each: the first), 1
    assert dealt(torch.tensor([3, 9, 1, 7, 6, 4]), 2).tolist() == [0, 0, 1, 1, 1, 0]
    assert dealt(torch.tensor([5, 5, 5, 5]), 2).tolist() == [0, 1, 0, 1]
    assert dealt(torch.tensor([5, 5, 5]), 1).tolist() == [0, 0, 0]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes make of all plays."""
    folder = tmp_path_factory.mktemp("together")
    command = [*TORCHRUN, "-m", "tests.world_plays", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def same(one: Any, other: Any) -> bool:
    """Numbers to 1e-8 of their size, or both missing."""
    if one is None or other is None or isinstance(one, str):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=1e-8, abs_tol=1e-8) or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("name", list(plays()))
def test_two_processes_are_as_one(name: str, together: Path) -> None:
    tensors, said = play(plays()[name])
    theirs = load_file(together / f"{name}.safetensors")
    told = json.loads((together / f"{name}.json").read_text())
    assert theirs.keys() == tensors.keys()
    for field, expected in tensors.items():
        torch.testing.assert_close(theirs[field], expected, rtol=1e-8, atol=1e-8, equal_nan=True, msg=field)
    wrong = {n: (told[n], value) for n, value in said.items() if not same(told[n], value)}
    assert not wrong


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_at_a_server_is_one_sum_and_fetches_no_row(name: str, together: Path) -> None:
    told = json.loads((together / f"{name} server all.json").read_text())
    assert (told["fetched"], told["added"]) == (0, 1)


@pytest.mark.parametrize("name", ["WeCFL server", "OneShot server", "FedAvg graph", "FedSPD graph"])
def test_rows_are_fetched_once_where_they_are_needed(name: str, together: Path) -> None:
    assert json.loads((together / f"{name} all.json").read_text())["fetched"] == 1
