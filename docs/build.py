"""Writes the generated pages: `python docs/build.py`.

reference/algorithms.md, reference/settings.md and the README's table of algorithms come from the code, the tables of
explanation/speed.md and the pages of reproduction from result files. `--pictures` draws the papers' figures anew too.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from coterie import ALGORITHMS, Algorithm, Choosing, Graph, Participation, Privacy, Training
from coterie.bench.table import markdown
from coterie.data import Partition
from coterie.data.named import DATA_SETS
from coterie.experiment.data_section import SOURCES
from coterie.experiment.experiment import _File
from coterie.experiment.field_docs import REQUIRED, Explained, explained
from coterie.models import MODELS
from coterie.reproduction.figures import draw
from coterie.reproduction.items import SIZES, Item, load, names
from coterie.reproduction.page import claims, former_runs, pictured
from coterie.reproduction.page import markdown as section
from coterie.reproduction.play import missing
from coterie.reproduction.results import Results, place

HERE = Path(__file__).parent

ALGORITHMS_HEAD = """# The algorithms

Made from the code by `python docs/build.py`; `coterie algorithms NAME` prints the same. Symbols, lines and equations
are those of the paper named. [k-FED](../how-to/k-fed.md) clusters points, not models, and has a page of its own.

Every algorithm passes the contract tests (`tests/contract/test_contracts.py`), at a server and, unless it needs a
server, over a graph: the same seed gives the same bits; the result does not depend on chunk size, on the order of
clients, or on whether clients run one at a time with everything sent as bytes; resuming; absent clients, down to none;
one cluster; a client with one point.
"""

SETTINGS_HEAD = """# Settings

Made from the code by `python docs/build.py`. The settings of the algorithms are on [their page](algorithms.md).

Defaults are written as in Python. In TOML `True` is `true`, `(1, 2)` is `[1, 2]`, and `None` is `"none"`, or the key
left out where `None` is the default.
"""


def _said(settings: Partition) -> str:
    """What a source says otherwise than others."""
    usual, own = vars(Partition()), vars(settings)
    return ", ".join(f"`{key}={value!r}`" for key, value in own.items() if value != usual[key])


FILE = """## The experiment file

A TOML file has these keys; see [examples](../../examples). Give exactly one of `algorithm`, `stage` and `method`. A
method inherits what it does not set from the file, and a stage from its method.
"""

KEYS = {  # in this order; an empty meaning is that of the source
    "name": "name of the run's folder, `runs/NAME-SEED`; by default the file's name",
    "seed": "seed of all random numbers",
    "seeds": "several, in place of one: every method is run with each; `--seeds 0-4` says the same",
    "held_out": "share of each client's training points to evaluate on in place of test points, to tune without these; "
    "`--sweep` sets it",
    "rounds": "rounds of every stage that does not set them; 50 by default",
    "clusters": '`n_clusters` of every algorithm that has it and does not set it; `"auto"`, here or there: '
    "[chosen](../how-to/choosing-clusters.md)",
    "init": "of a lone algorithm, or of the first stage: one of the "
    "[initialisations](../explanation/initialisation.md); by default the algorithm's own choice, "
    "but `random` in a stage",
    "until": '`"separated"`: a stage stops early, once its '
    '[centers are separated](../explanation/initialisation.md#when-centers-are-separated); `"rounds"` by default',
    "n_init": "of a first stage: it runs from so many random initialisations, and the one of least training loss is "
    "kept; 1 by default",
    "personal": "how clients of a method with clusters [make their models in the end]"
    '(../how-to/personal-models.md); `"own"` by default: as the algorithm does',
    "evaluate_every": "rounds between evaluations on held-out points; `auto`: 10, or [up to 100 where few clients "
    "train in a round](../explanation/scale.md#what-evaluation-costs); 0: only the summary at the end",
    "checkpoint_every": "rounds between checkpoints",
    "dtype": "floating-point type of models and data",
    "device": "`auto`: CUDA where available",
    "threads": "",  # explained in the source
    "compile": "whether [training steps are compiled](../explanation/speed.md): `auto` does so if the work ahead is "
    "long enough",
    "tf32": "",
    "data": "`source`, and the settings of that source",
    "model": "`name`, and the settings of that model; or the name alone, in quotes",
    "algorithm": "`name`, and the settings of [that algorithm](algorithms.md)",
    "training": "see [Training](#training)",
    "topology": '`kind = "server"`, or a kind of [graph](#graph) and its settings',
    "participation": "see [Participation](#participation)",
    "privacy": 'see [Privacy](#privacy); `mechanism = "none"` switches off that of the file',
    "choosing": "see [Choosing](#choosing)",
    "label": "of the method, in tables and, where there are several, of its folder; by default its algorithms' names",
    "stage": "`[[stage]]` tables, run one after another, each with `algorithm` and, where they differ, `rounds`, "
    "`until`, `n_init` and `init` (the first alone), `clusters`, `personal` (the last alone), `training`, `topology`, "
    "`participation`, `privacy`",
    "method": "`[[method]]` tables, run one after another and compared, each with `algorithm` or `[[method.stage]]` "
    "and, where they differ, `label`, `rounds`, `init`, `clusters`, `personal`, `training`, `topology`, "
    "`participation`, `privacy`",
}
DATA = """## Data

`source = "mnist"` and so on in TOML, `coterie.data.named("mnist", ...)` in Python; the others are functions of
`coterie.data`, where `folder` and `table` are `from_folder` and `from_table`. Paths are relative to the experiment
file's folder. In TOML `seed` is the experiment's, if not given. `mixture` says how much of each distribution a client
has: `"10:90"`, or any two percentages that add up to 100 (half of the clients have a:b, half b:a), `"linear"` (from one
distribution to the other, client by client), `"uniform"` (10 to 90 % of the first), `"random"`, `"iid"` (points drawn
without regard to distributions), or `"pure"` (one distribution each). The first three are for two clusters.
"""

DATA_SET_SETTINGS = f"""### Data sets

{", ".join(f"`{name}`" for name in DATA_SETS)}; several as `cifar10+mnist`.
[Heterogeneous data](../how-to/partitions.md) explains the settings.
`digits` has other defaults ({_said(DATA_SETS["digits"])}) and `image`, for inputs (1, 8, 8) instead
of 64 numbers; `femnist` and `shakespeare` have `by_owner=True`; several data sets have `distributions='datasets'`,
and `labels`: `'shared'`, or `'offset'` for classes of their own.
"""

MODEL = """## Models

`model = { name = "mlp", hidden = [32] }`, or `model = "mlp"`; see [Models](models.md). Their sizes of input and
output come from the data. Each takes `init` too: `"xavier-normal"` draws every matrix from Xavier's normal distribution
and sets biases to 0. Your own is `name = "package.module:Net"`, with its own settings beside the name.
"""


def table(rows: Sequence[Explained]) -> list[str]:
    """Markdown; a column of meanings only where there are any."""
    if not rows:
        return []
    headings = ["setting", "allowed", "default", "meaning"]
    cells = [[f"`{r.name}`", r.type, r.default, r.meaning] for r in rows]
    for row in cells:
        row[2] = row[2] if row[2] == REQUIRED else f"`{row[2]}`"
    if not any(r.meaning for r in rows):
        headings, cells = headings[:3], [row[:3] for row in cells]
    lines = [
        headings,
        ["---"] * len(headings),
        *([cell.replace("|", "\\|") for cell in row] for row in cells),
    ]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def part(heading: str, make: Callable[..., Any], rows: Sequence[Explained] | None = None) -> str:
    """A heading, what the docstring says, and the settings."""
    rows = explained(make) if rows is None else rows
    return "\n".join([heading, "", inspect.getdoc(make) or "", "", *table(rows)])


def algorithm(kind: type[Algorithm]) -> str:
    where = f"Runs at a server{'' if kind.needs_server else ' and over a graph'}. Its default "
    where += f"[initialisation](../explanation/initialisation.md) is `{kind.init_at_server}`"
    where += "." if kind.needs_server else f", and over a graph `{kind.init_over_graph}`."
    exempt = [f"- {contract}: {reason}" for contract, reason in kind.exempt.items()]
    lines = [part(f"## {kind.title()}", kind), where, ""]
    lines += ["Contracts that cannot apply: " + ("none." if not exempt else ""), *exempt, ""]
    if kind.bibtex:
        lines += ["```bibtex", kind.bibtex, "```", ""]
    return "\n".join(lines)


def algorithms() -> str:
    return ALGORITHMS_HEAD + "\n" + "\n".join(algorithm(kind) for kind in ALGORITHMS.values())


def readme() -> str:
    """The page as it is, with the table of the algorithms: the first sentence of each, and where it runs."""
    lines = ["| | at a server | over a graph | |", "|---|---|---|---|"]
    for name, kind in ALGORITHMS.items():
        says = (inspect.getdoc(kind) or name).splitlines()[0].split(". ")[0].removesuffix(".")
        lines.append(f"| {name} | ✓ | {'' if kind.needs_server else '✓'} | {says} |")
    return _filled(HERE.parent / "README.md", "algorithms", "\n".join(lines))


def keys() -> list[str]:
    known = {one.name: one for one in explained(_File)}
    rows = [replace(known[name], meaning=KEYS.get(name) or known[name].meaning) for name in KEYS]
    assert len(rows) == len(known), "a key of the experiment file is not explained"
    return table(rows)


def settings() -> str:
    sized = {name: [r for r in explained(make) if r.default != REQUIRED] for name, make in MODELS.items()}
    parts = [SETTINGS_HEAD, "\n".join([FILE, *keys()])]
    kinds = (Training, Graph, Participation, Privacy, Choosing)
    parts += [part(f"## {kind.__name__}", kind) for kind in kinds]
    parts += [
        DATA,
        "\n".join([DATA_SET_SETTINGS, *table(explained(Partition))]),
        *(part(f"### {name}", make) for name, make in SOURCES.items()),
    ]
    parts += [MODEL, *(part(f"### {name}", make, sized[name]) for name, make in MODELS.items())]
    return "\n".join(parts)


def speed() -> str:
    """The page as it is, with the tables of the result files that there are."""
    files = sorted((HERE.parent / "benchmarks" / "results").glob("speed*.json"))
    parts = [_measured(file) for file in files] or ["No result file is committed yet.\n"]
    return _filled(HERE / "explanation" / "speed.md", "results", "\n".join(parts))


def _measured(file: Path) -> str:
    report = json.loads(file.read_text(encoding="utf-8"))
    where = f"[{file.name}](../../benchmarks/results/{file.name})"
    return "\n".join([f"From {where}:", "", *markdown(report), ""])


def which_method() -> str:
    """The page as it is, with the personal models of all methods, from the result file."""
    report = json.loads((HERE.parent / "experiments/results/all_methods.json").read_text(encoding="utf-8"))
    runs = report["runs"]
    settings = list(dict.fromkeys(run["setting"] for run in runs))
    rows = [f"| | {' | '.join(settings)} |", "|---" * (len(settings) + 1) + "|"]
    for method in dict.fromkeys(run["method"] for run in runs):
        mine = [[r for r in runs if (r["method"], r["setting"]) == (method, one)] for one in settings]
        rows.append(f"| {method} | {' | '.join(_personal(each) for each in mine)} |")
    return _filled(HERE / "how-to" / "which-method.md", "all methods", "\n".join([*rows, ""]))


def _personal(runs: list[dict[str, Any]]) -> str:
    """The mean over seeds, and that of the worst tenth of the clients where accuracy is measured."""
    worst = [run["worst tenth"] for run in runs]
    mean = fmean(run["personal"] for run in runs)
    return f"{mean:.1f}" if None in worst else f"{mean:.3f} ({fmean(worst):.2f})"


def _filled(page: Path, name: str, text: str) -> str:
    """The page with this text between its two comments `name: ...` and `end of name`."""
    between = re.compile(f"(<!-- {name}:.*?-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    return between.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page.read_text(encoding="utf-8"))


ITEMS = """{held} of the {tested} claims that were tested held. The {all} items: {states}.

| item | title | data | run | held | not held | open | not testable |
|---|---|---|---|---|---|---|---|
"""
PAPERS = {
    "fedsoft": "FedSoft (Ruan and Joe-Wong, 2022)",
    "kfed": "k-FED (Dennis, Li and Smith, 2021)",
    "wecfl": "WeCFL (Ma et al., 2022)",
    "fedspd": "FedSPD (Lin, Yağan and Joe-Wong, 2025)",
}


def _runs(item: Item) -> list[tuple[str, Results]]:
    """All sizes of which something was run, from the largest on to one that is whole; or else with former settings.

    Quick results stand there only where there are no others.
    """
    kept = HERE.parent / "experiments" / "results"
    each = [(size, Results.load(place(kept, item, size), item, size)) for size in reversed(SIZES)]
    some = [(size, results) for size, results in each if results.lines]
    some = [one for one in some if one[0] != "quick"] or some
    whole = next((n for n, one in enumerate(some, 1) if not missing(item, *one)), len(some))
    return some[:whole] or [(size, results) for size, results in each if results.former][:1]


def _outcomes(item: Item, found: list[tuple[str, Results]]) -> Counter[str]:
    """Each claim once: as in the largest size in which it was tested."""
    sizes = [[outcome for _, outcome, _ in claims(item, results)] for _, results in found]
    return Counter(next((one for one in each if one != "open"), "open") for each in zip(*sizes, strict=True))


def _state(item: Item, size: str, results: Results) -> str:
    if not results.lines:
        return f"– ({former_runs(results)})"
    return f"{size} in part" if missing(item, size, results) else size


def reproduction() -> str:
    """One line per item. What a quick size says does not count."""
    lines, total, states = [], Counter[str](), Counter[str]()
    for name in names(HERE.parent / "experiments"):
        item = load(name, HERE.parent / "experiments")
        found = _runs(item)
        outcomes = _outcomes(item, found)
        said = " and ".join(_state(item, *one) for one in found) or "–"
        states["not run" if said.startswith("–") else said] += 1
        total += outcomes if all(size != "quick" for size, _ in found) else Counter()
        kinds = ("held", "not held", "open", "not testable")
        shown = any(results.lines for _, results in found)
        counts = [str(outcomes[kind]) if shown else "" for kind in kinds]
        link = f"[{name}](reproduction/{name.split('-')[0]}.md#{_anchor(item)})"
        lines.append(f"| {link} | {item.title} | {item.data} | {said} | {' | '.join(counts)} |")
    head = ITEMS.format(
        held=total["held"],
        tested=total["held"] + total["not held"],
        states=", ".join(f"{count} {state}" for state, count in states.most_common()),
        all=len(lines),
    )
    return _filled(HERE / "reproduction.md", "items", head + "\n".join([*lines, ""]))


def _anchor(item: Item) -> str:
    return re.sub(r"[^\w -]", "", f"{item.name}: {item.title}".lower()).replace(" ", "-")


def _paper(paper: str) -> str:
    folder = HERE.parent / "experiments"
    parts = [f"# {PAPERS[paper]}", "", "See [how to read this](../reproduction.md).", ""]
    for name in names(folder):
        if name.startswith(f"{paper}-"):
            item = load(name, folder)
            parts.append(section(item, _runs(item)))
    return "\n".join(parts)


PAGES = {
    "reproduction.md": reproduction,
    **{f"reproduction/{paper}.md": partial(_paper, paper) for paper in PAPERS},
    "../README.md": readme,
    "reference/algorithms.md": algorithms,
    "reference/settings.md": settings,
    "explanation/speed.md": speed,
    "how-to/which-method.md": which_method,
}


def pictures() -> None:
    """Of the figures of which there are results; others are removed."""
    for name in names(HERE.parent / "experiments"):
        item = load(name, HERE.parent / "experiments")
        picture = HERE / "reproduction" / f"{name}.png"
        if (shown := pictured(item, _runs(item))) is not None:
            draw(item, shown, picture)
        else:
            picture.unlink(missing_ok=True)


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    if "--pictures" in sys.argv[1:]:
        pictures()
