"""Who has what: the table and the picture of `coterie data show`."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console

from coterie.cli.data import show
from coterie.data import named
from coterie.errors import CoterieError
from coterie.report.plots import _shares, by_cluster, clients_table, held


def test_what_is_held_adds_up(data_files):
    made = named("mnist", clients=6, distributions="rotate", clusters=3, mixture="random", classes=4)
    whole = held(made)
    assert whole.shape == (6, 3, 10)
    assert torch.equal(whole.sum((1, 2)), made.train.sizes)
    assert torch.equal(whole.sum((0, 1)), made.train.y.bincount(minlength=10))
    assert torch.allclose(whole.sum(2) / made.train.sizes[:, None], made.mixture.float())
    assert sorted(by_cluster(whole)) == list(range(6))


def test_the_table_has_a_line_per_client(data_files):
    made = named("mnist", clients=4, distributions="rotate", clusters=2, classes=2)
    console = Console(width=200)
    with console.capture() as printed:
        console.print(clients_table(made))
    lines = printed.get().splitlines()
    first = lines[2].split()
    assert first[:4] == ["0", "1", str(int(made.train.sizes[0])), str(int(made.test.sizes[0]))]
    assert [int(n) for n in first[4:] if n != "·"] == [int(n) for n in held(made)[0].sum(0) if n]
    assert "4 clients" in lines[-1]


def test_only_distributions_that_a_client_has_are_listed():
    points = torch.zeros(8, dtype=torch.long)
    points[[6, 2]] = torch.tensor([3, 1])
    assert _shares(points) == "7:75% 3:25%"
    points[[0, 1]] = torch.tensor([4, 2])
    assert _shares(points) == "1:40% 7:30% 2:20% …"
    assert _shares(points[:3]) == "57% 29% 14%"
    assert _shares(torch.tensor([0, 5])) == "2"


@pytest.mark.parametrize("source", ["mnist", "shakespeare", "regressions", "digits"])
def test_show_prints_and_draws(data_files, tmp_path, capsys, source):
    file, picture = tmp_path / "e.toml", tmp_path / "p.png"
    file.write_text(f'[data]\nsource = "{source}"\n[model]\nname = "linear"\n[algorithm]\nname = "FedAvg"\n')
    changes = [] if source == "shakespeare" else ["data.clients=5"]
    assert show(file, picture, changes) == 0
    assert f"{6 if source == 'shakespeare' else 5} clients" in capsys.readouterr().out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(CoterieError, match=r"--out is .*allowed is a file that ends in \.png"):
        show(file, tmp_path / "p.doc")
