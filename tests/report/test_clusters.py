"""Clusters with their members, and tables that fit into a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from coterie.report import tables
from coterie.report.clusters import (
    Cluster,
    all_members,
    at_the_end,
    clients_table,
    clusters_of,
    clusters_table,
    first_members,
    worst,
)
from coterie.report.compare import measured
from coterie.runs.client_table import ClientLine


def line(id: str, cluster: int | None = 0, **more: Any) -> ClientLine:
    known = {"importance": 1.0, "margin": 0.5, "points": 10, "loss": 1.0, "accuracy": 0.5, "f1": 0.25, **more}
    return ClientLine(id, cluster, **known)


def printed(table: Table, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as found:
        console.print(table)
    return found.get()


def of(*ids: str, number: int = 0) -> Cluster:
    return Cluster(number, tuple(line(id, number) for id in ids))


# clusters


def test_clusters_with_the_empty_ones() -> None:
    lines = [line("a", 2), line("b", 0), line("c", None), line("d", 2, points=30, accuracy=0.75)]
    found = clusters_of(lines, 3)
    assert [[one.id for one in cluster.members] for cluster in found] == [["b"], [], ["a", "d"]]
    assert [cluster.points for cluster in found] == [10, 0, 40]
    assert [cluster.mean("accuracy") for cluster in found] == [0.5, None, 0.625]


def test_what_is_not_known_of_all_is_not_added_up() -> None:
    found = clusters_of([line("a", 0, points=None, loss=None), line("b", 0), line("c", 1)], 2)
    assert (found[0].points, found[0].mean("loss")) == (None, 1.0)


def test_one_cluster_or_none_is_not_worth_a_table() -> None:
    assert clusters_of([line("a"), line("b")], 1) == []
    assert clusters_of([line("a", None), line("b", None)], 2) == []


def test_the_worst() -> None:
    lines = [
        line("a", loss=1.0),
        line("b", loss=3.0),
        line("c", accuracy=0.1),
        line("d", loss=None, accuracy=None),
    ]
    assert [one.id for one in worst(lines, 2)] == ["c", "b"]
    regression = [
        line(name, accuracy=None, loss=loss) for name, loss in (("a", 1.0), ("b", float("inf")), ("c", 2.0))
    ]
    assert [one.id for one in worst(regression, 5)] == ["b", "c", "a"]


# tables


def test_hard_clusters_show_their_margin_and_soft_ones_their_importance() -> None:
    hard, soft = [of("a"), of("b", number=1)], [Cluster(0, (line("a", importance=0.6),)), of("b", number=1)]
    assert printed(clusters_table(hard)).split()[:6] == [
        "cluster",
        "clients",
        "points",
        "margin",
        "accuracy",
        "loss",
    ]
    assert printed(clusters_table(soft)).split()[3] == "importance"
    wide = ["cluster", "clients", "points", "importance", "margin", "accuracy", "F1", "loss"]
    assert printed(clusters_table(hard, wide=True)).split()[:8] == wide


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    nothing = {"points": None, "margin": None, "accuracy": None, "f1": None}
    text = printed(clusters_table(clusters_of([line("a", 0, **nothing), line("b", 1, **nothing)], 2)))
    assert text.splitlines()[0].split() == ["cluster", "clients", "loss"]
    text = printed(clients_table([line("a", None, importance=None, margin=None)], clustered=False))
    assert text.splitlines()[0].split() == ["client", "points", "accuracy", "loss"]


def test_ids_are_shown_as_they_are() -> None:
    """Neither as colours nor as commands to a terminal; one that is too long is cut."""
    for id, shown in (
        ("[red]x[/red]", "[red]x[/red]"),
        ("\x1b[31mx", r"'\x1b[31mx'"),
        ("x" * 50, "x" * 39 + "…"),
        (" ", "' '"),
    ):
        assert shown in printed(clients_table([line(id)], clustered=True))
        assert first_members(of(id), "", 100) == f"1 client: {shown}"
    assert all_members(of("x" * 50), "", 60).endswith("x" * 50)


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_number_is_broken(width: int) -> None:
    lines = [line("a rather long name of a clinic, no. " + str(i), i % 2, loss=123.456789) for i in range(4)]
    text = printed(clients_table(lines, clustered=True), width)
    assert [row.split()[-5:] for row in text.splitlines() if "123" in row] == [
        [str(i % 2), "10", "0.500", "0.500", "123.457"] for i in range(4)
    ]


# sentences


def test_as_many_members_as_fit() -> None:
    ten = of(*map(str, range(10)))
    assert first_members(ten, "0: ", 100) == "0: 10 clients: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert first_members(ten, "0: ", 42) == "0: 10 clients: 0, 1, 2, 3, 4, 5 and 4 more"
    assert first_members(ten, "0: ", 10) == "0: 10 clients: 0 and 9 more"
    assert first_members(of(), "0: ", 100) == "0: 0 clients"
    many = first_members(of(*(f"client-{i}" for i in range(5000))), "", 60)
    assert many.startswith("5000 clients: client-0, client-1")
    assert many.endswith("more")
    assert len(many) <= 60


def test_all_members() -> None:
    text = all_members(of(*(f"clinic-{i}" for i in range(30))), "cluster 0, ", 60)
    assert max(map(len, text.splitlines())) <= 60
    assert " ".join(text.split()).endswith(", ".join(f"clinic-{i}" for i in range(30)))


def test_a_few_clusters_are_named_and_many_are_counted() -> None:
    two = [of("a", "b"), of("c", number=1)]
    assert at_the_end({"FedAvg": [], "IFCA": two}, 100) == [
        "IFCA:",
        "  cluster 0, 2 clients: a, b",
        "  cluster 1, 1 client: c",
    ]
    sizes = [f"{name}: 2 clusters, with so many clients each: 0: 2, 1: 1" for name in "abcde"]
    assert at_the_end(dict.fromkeys("abcde", two), 100) == sizes
    many = [of(*"abc"[: 1 + number % 3], number=number) for number in range(20)]
    assert at_the_end({"IFCA": many}, 100) == [
        "IFCA: 20 clusters, of 1 to 3 clients; the largest is cluster 2"
    ]


# the table at the end


def summary(accuracy: list[list[float]]) -> dict[str, Any]:
    own = list(range(len(accuracy)))
    return {"centers": {"accuracy": accuracy, "center_of_distribution": own}, "megabytes": 1.0}


FOUR = [[0.9, 0.1, 0.2, 0.3], [0.1, 0.8, 0.4, 0.3], [0.0, 0.1, 0.7, 0.3], [0.1, 0.6, 0.2, 0.6]]


def test_many_distributions_have_mean_and_worst() -> None:
    narrow = {"accuracy (mean)": 0.75, "accuracy (worst)": 0.6, "others (mean)": 0.35, "others (best)": 0.6}
    assert measured(summary(FOUR), wide=False) == pytest.approx({**narrow, "MB sent": 1.0})
    assert len(measured(summary(FOUR), wide=True)) == 9
    three = [row[:3] for row in FOUR[:3]]
    assert measured(summary(three), wide=False) == measured(summary(three), wide=True)


def test_of_losses_the_worst_is_the_highest() -> None:
    centers = {"loss": FOUR, "center_of_distribution": [0, 1, 2, 3]}
    found = measured({"centers": centers, "megabytes": 1.0}, wide=False)
    assert found["MSE (worst)"] == 0.9
    assert found["others (best)"] == 0.0


def test_a_center_that_diverged_is_the_worst() -> None:
    lost: Any = [[None, *FOUR[0][1:]], *FOUR[1:]]
    text = printed(tables.end_of_run({"IFCA": measured(summary(lost), wide=False)}, 200))
    assert text.splitlines()[2].split()[1:3] == ["diverged", "diverged"]


def test_a_table_that_does_not_fit_has_a_line_per_number() -> None:
    methods = {"IFCA": measured(summary(FOUR)), "FedEM": measured(summary(FOUR[::-1]))}
    across = printed(tables.end_of_run(methods, 200), 200).splitlines()
    assert [row.split()[0] for row in across[2:4]] == ["IFCA", "FedEM"]
    down = printed(tables.end_of_run(methods, 60), 60).splitlines()
    assert down[0].split() == ["method", "IFCA", "FedEM"]
    assert down[2].split() == ["accuracy", "on", "1", "0.900", "0.100"]
    assert down[10].split() == ["MB", "sent", "1.0", "1.0"]


def test_headings_are_broken_between_words_and_numbers_never() -> None:
    personal = {"accuracy": 0.5, "f1": 0.5, "loss": 1.0}
    found = measured({**summary([row[:2] for row in FOUR[:2]]), "personal": personal})
    for width in range(50, 130):
        text = printed(tables.end_of_run({"IFCA": found}, width), width)
        assert {"accuracy", "others", "personal", "sent", "0.900", "0.500", "1.0"} <= set(text.split()), width
