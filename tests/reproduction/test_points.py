"""What scatter plots, heat maps and the importance show, of small runs on digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import coterie
from coterie import CoterieError, FedSoft, Training, WeCFL
from coterie.data import digits
from coterie.models import build
from coterie.reproduction.figures import _draw_numbers, _draw_points, draw
from coterie.reproduction.items import Item
from coterie.reproduction.points import HEADS, Point, rows_of
from coterie.reproduction.results import Line, Results
from coterie.runs.folder import RunFolder

CLIENTS, ROUNDS = 8, 3


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    data = digits(clients=CLIENTS, train_points=30, test_points=5, mixture="10:90")
    training, found = Training(learning_rate=0.1, epochs=2), {}
    for algorithm in (WeCFL(3), FedSoft(2)):
        out = tmp_path_factory.mktemp("runs") / algorithm.title()
        model = build("mlp", (64,), 10, hidden=(8,))
        coterie.run(model, data, algorithm, rounds=ROUNDS, training=training, evaluate_every=1, out=out)
        found[algorithm.title()] = RunFolder(out)
    return found


def test_scatter_has_every_client_with_its_cluster(stores: dict[str, RunFolder]) -> None:
    rows = rows_of("scatter", stores["WeCFL"], every_round=True)
    assert [number for number, _ in rows] == [1] * CLIENTS + [2] * CLIENTS + [3] * CLIENTS
    assert rows[-CLIENTS:] == rows_of("scatter", stores["WeCFL"], every_round=False)
    last = [row for number, row in rows if number == ROUNDS]
    importance = stores["WeCFL"].result()[0]["importance"]
    assert [row[:2] for row in last] == list(enumerate(importance.argmax(1).tolist()))
    assert len({row[2:] for row in last}) == CLIENTS


def test_a_heat_map_has_centers_and_on_its_diagonal_clients(stores: dict[str, RunFolder]) -> None:
    rows = [row for _, row in rows_of("heatmap", stores["WeCFL"], every_round=False)]
    assert [row[:2] for row in rows] == [(i, j) for i in range(3) for j in range(3)]
    cosine = {row[:2]: row[2] for row in rows}
    record = stores["WeCFL"].records()[-1]
    between = [cosine[i, j] for i in range(3) for j in range(3) if i < j]
    assert sum(between) / 3 == pytest.approx(record["cosine_between"], abs=1e-5)
    within = [cosine[i, i] for i in range(3) if cosine[i, i] == cosine[i, i]]
    assert sum(within) / len(within) == pytest.approx(record["cosine_within"], abs=1e-5)


def test_importance_is_of_the_first_distribution_s_cluster(stores: dict[str, RunFolder]) -> None:
    rows = [row for _, row in rows_of("importance", stores["FedSoft"], every_round=False)]
    first = stores["FedSoft"].summary()["centers"]["center_of_distribution"][0]
    importance = stores["FedSoft"].result()[0]["importance"]
    assert [row[2] for row in rows] == importance[:, first].tolist()
    assert [row[1] == 0 for row in rows] == (importance.argmax(1) == first).tolist()


def results_of(figure: str, store: RunFolder, path: Path) -> tuple[Item, Results]:
    column = {"name": "ARI by round", "of": "ari_by_round", "better": ""}
    item = Item("wecfl-figure-1", {"figure": figure, "column": [column]}, {})
    results = Results(path, head=HEADS[figure])
    for method in ("one", "other"):
        rows = rows_of(figure, store, every_round=figure == "scatter")
        results.add_points([Point("", method, "abc", number, row) for number, row in rows])
    return item, results


@pytest.mark.parametrize(
    ("figure", "method", "panels"),
    [("scatter", "WeCFL", 2 * ROUNDS), ("heatmap", "WeCFL", 3), ("importance", "FedSoft", 2)],
)
def test_pictures_of_points(
    figure: str, method: str, panels: int, stores: dict[str, RunFolder], tmp_path: Path
) -> None:
    """A panel for each method and round; a heat map has a color bar too."""
    item, results = results_of(figure, stores[method], tmp_path / "figure-1-quick")
    drawn = _draw_points(item, results)
    assert len(drawn.axes) == panels
    assert all(axes.get_ylabel() for axes in drawn.axes)
    legend = [text.get_text() for one in drawn.legends for text in one.get_texts()]
    assert bool(legend) == (figure != "heatmap")
    draw(item, results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_rounds_are_named_where_a_method_has_several(tmp_path: Path) -> None:
    """Not where each has its last alone, which need not be that of the others."""
    methods = [{"label": "FedSoft"}, {"label": "IFCA"}]
    table = {"figure": "importance", "column": [], "experiment": {"method": methods}}
    item, row = Item("fedsoft-figure-2", table, {}), (0.0, 0.0, 0.5)
    last = [Point("", "FedSoft", "", 20, row), Point("", "IFCA", "", 16, row)]
    for points, titles in (
        (last, ["FedSoft", "IFCA"]),
        ([Point("", "IFCA", "", 1, row), last[1]], ["IFCA\nround 1", "IFCA\nround 16"]),
    ):
        drawn = _draw_points(item, Results(tmp_path / "none", points=points))
        assert [axes.get_title() for axes in drawn.axes] == titles


def test_series_of_variants_have_panels_of_their_own(tmp_path: Path) -> None:
    """A line from letters with 8 to Shakespeare with 1 would say nothing."""
    variants = [
        {"name": f"{data}, k' = {k}", "set": {}} for data in ("letters", "Shakespeare") for k in (1, 2, 8)
    ]
    column = {"name": "cost", "of": "cost", "better": "lower"}
    item = Item("kfed-figure-2", {"figure": "lines", "variant": variants, "column": [column]}, {})
    lines = [
        Line(one["name"], "k-FED", "cost", seed, None, float(number + seed), 0, "")
        for number, one in enumerate(variants)
        for seed in (0, 1)
    ]
    drawn = _draw_numbers(item, Results(tmp_path / "none", lines))
    assert [axes.get_title() for axes in drawn.axes] == ["letters", "Shakespeare"]
    for axes, first in zip(drawn.axes, (0, 3), strict=True):
        assert [text.get_text() for text in axes.get_xticklabels()] == ["k' = 1", "k' = 2", "k' = 8"]
        assert list(axes.lines[0].get_ydata()) == [first + 0.5, first + 1.5, first + 2.5]
    assert {axes.get_yscale() for axes in drawn.axes} == {"linear"}
    tens = [replace(line, value=10 ** (line.value - 0.9 * line.seed)) for line in lines]
    assert [axes.get_yscale() for axes in _draw_numbers(item, Results(tmp_path / "none", tens)).axes] == [
        "log"
    ] * 2
    item.table["variant"] = variants[:4]  # one of Shakespeare alone is no series
    (axes,) = _draw_numbers(item, Results(tmp_path / "none", lines)).axes
    assert len(axes.get_xticklabels()) == 4


def test_of_a_single_variant_methods_stand_one_below_the_other(tmp_path: Path) -> None:
    """On one place of an axis they would hide each other."""
    table = {
        "figure": "bars",
        "column": [{"name": name, "of": name, "better": "higher"} for name in ("accuracy", "worst")],
        "experiment": {"method": [{"label": "FedSPD"}, {"label": "FedAvg"}]},
    }
    lines = [
        Line("", method, column, seed, None, value + seed, 0, "")
        for method, value in (("FedAvg", 0.5), ("FedSPD", 0.1))
        for column in ("accuracy", "worst")
        for seed in (0, 1)
    ]
    drawn = _draw_numbers(Item("fedspd-figure-3", table, {}), Results(tmp_path / "none", lines))
    assert [axes.get_xlabel() for axes in drawn.axes] == ["accuracy", "worst"]
    for axes in drawn.axes:
        assert [text.get_text() for text in axes.get_yticklabels()] == ["FedSPD", "FedAvg"]
        shown = [(*line.get_xdata(), *line.get_ydata()) for line in axes.lines if line.get_marker() == "o"]
        assert shown == [pytest.approx((0.6, 0)), pytest.approx((1.0, 1))]
    assert not drawn.legends


def test_a_method_has_one_color_in_all_panels_and_the_legend_has_every_method(tmp_path: Path) -> None:
    """Also where an item was run in part, and a panel lacks a method."""
    methods = [{"label": "FedSPD"}, {"label": "FedAvg"}]
    column = {"name": "accuracy", "of": "test_accuracy_by_round", "better": "higher"}
    variants = [{"name": name, "set": {}} for name in ("MNIST", "EMNIST")]
    table = {"figure": "curves", "variant": variants, "column": [column], "experiment": {"method": methods}}
    run = [("MNIST", "FedAvg"), ("EMNIST", "FedSPD"), ("EMNIST", "FedAvg")]
    lines = [Line(*each, "accuracy", 0, number, 0.5, 0, "") for each in run for number in (1, 2)]
    drawn = _draw_numbers(Item("fedspd-figure-3", table, {}), Results(tmp_path / "none", lines))
    of_panel = [{line.get_label(): line.get_color() for line in axes.lines} for axes in drawn.axes]
    assert [set(colors) for colors in of_panel] == [{"FedAvg"}, {"FedSPD", "FedAvg"}]
    assert of_panel[0]["FedAvg"] == of_panel[1]["FedAvg"] != of_panel[1]["FedSPD"]
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedSPD", "FedAvg"]


@pytest.mark.parametrize(("variants", "beside"), [(1, [0, 1]), (2, [0, 1]), (4, [0, 1, 2])])
def test_curves_of_two_variants_stand_side_by_side(tmp_path: Path, variants: int, beside: list[int]) -> None:
    """And their columns one below the other, so that a row compares what is alike."""
    names = [str(number) for number in range(variants)]
    columns = [
        {"name": of, "of": f"{of}_by_round", "better": "higher"} for of in ("test_accuracy", "test_f1")
    ]
    table = {
        "figure": "curves",
        "variant": [{"name": name, "set": {}} for name in names],
        "column": columns,
        "experiment": {"method": [{"label": "FedAvg"}]},
    }
    lines = [Line(name, "FedAvg", one["name"], 0, 1, 0.5, 0, "") for one in columns for name in names]
    drawn = _draw_numbers(Item("wecfl-figure-2", table, {}), Results(tmp_path / "none", lines))
    first_row = [axes for axes in drawn.axes if axes.get_subplotspec().rowspan.start == 0]  # type: ignore[union-attr]
    assert [axes.get_subplotspec().colspan.start for axes in first_row] == beside  # type: ignore[union-attr]


def test_there_is_nothing_to_draw(tmp_path: Path) -> None:
    item = Item("wecfl-figure-1", {"figure": "scatter", "column": []}, {})
    with pytest.raises(CoterieError, match="wecfl-figure-1 has no results to draw"):
        draw(item, Results(tmp_path / "none"), tmp_path / "picture.png")
