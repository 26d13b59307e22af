"""Writes reference/algorithms.md and reference/settings.md from the code, and the tables of explanation/speed.md from
result files: `python docs/build.py`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie import ALGORITHMS, Algorithm, Choosing, Graph, Participation, Privacy, Training
from coterie.bench.table import markdown
from coterie.data import Deal
from coterie.data.named import DEALT
from coterie.experiment.experiment import SOURCES, _File
from coterie.experiment.field_docs import REQUIRED, Explained, explained
from coterie.models import MODELS

ALGORITHMS_HEAD = """# The algorithms

Made from the code by `python docs/build.py`; `coterie algorithms NAME` prints the same. Symbols, lines and equations
are those of the paper named. [k-FED](../how-to/k-fed.md) clusters points, not models, and has a page of its own.

Every algorithm in the list passes the contract tests (`tests/test_contracts.py`), at a server and, unless it
needs a server, over a graph: same seed, same bits; chunk size; order of clients; clients apart, everything as
bytes; resume; absent clients, down to none; one cluster; a client with one point.
"""

SETTINGS_HEAD = """# Settings

Made from the code by `python docs/build.py`. The settings of the algorithms are on [their page](algorithms.md).

Defaults are written as in Python. In TOML `True` is `true`, `(1, 2)` is `[1, 2]`, and `None` is `"none"`, or the key
left out where `None` is the default.
"""


def _said(deal: Deal) -> str:
    """What a source says otherwise than others."""
    usual, own = vars(Deal()), vars(deal)
    return ", ".join(f"`{key}={value!r}`" for key, value in own.items() if value != usual[key])


FILE = """## The experiment file

A TOML file has these keys; [examples](../../examples) has such files. Exactly one of `algorithm`, `stage` and `method`
is given. What a method does not say is as the file says, and what a stage does not say is as its method says.
"""

KEYS = {  # in this order; an empty meaning is that of the source
    "name": "of the run's folder, `runs/NAME-SEED`; the file's name if not given",
    "seed": "of everything that is drawn",
    "rounds": "of every stage that does not say; 50 if nothing is said",
    "clusters": '`n_clusters` of every algorithm that has it and does not say; `"auto"`, here or there: '
    "[chosen](../how-to/choosing-clusters.md)",
    "init": "of a lone algorithm, or of the first stage: one of the "
    "[initialisations](../explanation/initialisation.md); if not given, the algorithm's own choice, "
    "but `random` in a stage",
    "until": '`"separated"`: a stage ends ahead of its rounds, once its '
    '[centers have come apart](../explanation/initialisation.md); `"rounds"` if nothing is said',
    "n_init": "of a first stage: it is played from so many random initialisations, and the one of least training loss "
    "is kept; 1 if nothing is said",
    "evaluate_every": "rounds between scores on held-out points; `auto`: 10, or [up to 100 where few clients train "
    "in a round](../explanation/scale.md#what-looking-costs); 0: none until the summary at the end",
    "checkpoint_every": "rounds between checkpoints",
    "dtype": "of the numbers computed with",
    "device": "`auto`: CUDA where there is one",
    "threads": "",  # said beside it
    "compile": "whether [training steps are compiled](../explanation/speed.md): `auto` does so where the work "
    "ahead pays for it",
    "tf32": "",
    "data": "`source`, and the settings of that source",
    "model": "`name`, and the settings of that model; or the name alone, in quotes",
    "algorithm": "`name`, and the settings of [that algorithm](algorithms.md)",
    "training": "see [Training](#training)",
    "topology": '`kind = "server"`, or a kind of [graph](#graph) and its settings',
    "participation": "see [Participation](#participation)",
    "privacy": 'see [Privacy](#privacy); `mechanism = "none"`: none, where the file has some',
    "choosing": "see [Choosing](#choosing)",
    "label": "of the method, in tables and, where there are several, of its folder; else its algorithms' names",
    "stage": "`[[stage]]` tables, played one after another, each with `algorithm` and, where they differ, `rounds`, "
    "`until`, `n_init` and `init` (the first alone), `clusters`, `training`, `topology`, `participation`, `privacy`",
    "method": "`[[method]]` tables, played one by one and compared, each with `algorithm` or `[[method.stage]]` and, "
    "where they differ, `label`, `rounds`, `start`, `clusters`, `training`, `topology`, `participation`, `privacy`",
}
DATA = """## Data

`source = "mnist"` and so on in TOML, `coterie.data.named("mnist", ...)` in Python; the others are functions of
`coterie.data`, where `folder` and `table` are `from_folder` and `from_table`. Paths are looked for from the experiment
file's folder. In TOML `seed` is the experiment's, if not given. `pattern` says how much of each distribution a client
has: `"10:90"`, or any two shares that add up to 100 (half of the clients have the one mixture, half the other),
`"linear"` (from one distribution to the other, client by client), `"uniform"` (10 to 90 % of the first), `"random"`,
`"iid"` (as it comes), or `"pure"` (one distribution each). The first three are for two clusters.
"""

DATA_SETS = f"""### Data sets

{", ".join(f"`{name}`" for name in DEALT)}; several as `cifar10+mnist`.
[Making it heterogeneous](../how-to/partitions.md) says what the settings do.
`digits` has other defaults ({_said(DEALT["digits"])}) and `image`, for inputs (1, 8, 8) instead
of 64 numbers; `femnist` and `shakespeare` are dealt out `by_owner`; several data sets have `distributions='datasets'`,
and `labels`: `'shared'`, or `'offset'` for classes of their own.
"""

MODEL = """## Models

`model = { name = "mlp", hidden = [32] }`, or `model = "mlp"`; [Models](models.md) says whose they are. Their sizes of
input and output come from the data. Each takes `init` too: `"xavier-normal"` draws every matrix from Xavier's normal
distribution and sets biases to 0. Your own is `name = "package.module:Net"`, with its own settings beside the name.
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
    where = f"Runs at a server{'' if kind.needs_server else ' and over a graph'}. Its "
    where += f"[start](../explanation/initialisation.md), if none is named, is `{kind.init_at_server}`"
    where += "." if kind.needs_server else f", and over a graph `{kind.init_over_graph}`."
    exempt = [f"- {contract}: {reason}" for contract, reason in kind.exempt.items()]
    lines = [part(f"## {kind.title()}", kind), where, ""]
    lines += ["Contracts that cannot apply: " + ("none." if not exempt else ""), *exempt, ""]
    if kind.bibtex:
        lines += ["```bibtex", kind.bibtex, "```", ""]
    return "\n".join(lines)


def algorithms() -> str:
    return ALGORITHMS_HEAD + "\n" + "\n".join(algorithm(kind) for kind in ALGORITHMS.values())


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
        "\n".join([DATA_SETS, *table(explained(Deal))]),
        *(part(f"### {name}", make) for name, make in SOURCES.items()),
    ]
    parts += [MODEL, *(part(f"### {name}", make, sized[name]) for name, make in MODELS.items())]
    return "\n".join(parts)


HERE = Path(__file__).parent
RESULTS = re.compile(r"(<!-- results:.*?-->\n).*?(<!-- end of results -->)", re.DOTALL)


def speed() -> str:
    """The page as it is, with the tables of the result files that there are."""
    files = sorted((HERE.parent / "benchmarks" / "results").glob("speed*.json"))
    parts = [_measured(file) for file in files] or ["No result file is committed yet.\n"]
    page = (HERE / "explanation" / "speed.md").read_text(encoding="utf-8")
    return RESULTS.sub(lambda found: found[1] + "\n" + "\n".join(parts) + "\n" + found[2], page)


def _measured(file: Path) -> str:
    report = json.loads(file.read_text(encoding="utf-8"))
    where = f"[{file.name}](../../benchmarks/results/{file.name})"
    return "\n".join([f"From {where}:", "", *markdown(report), ""])


PAGES = {
    "reference/algorithms.md": algorithms,
    "reference/settings.md": settings,
    "explanation/speed.md": speed,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
