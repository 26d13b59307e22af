"""The command line: run, resume, choose-clusters, compare, algorithms, cluster, onboard, data, bench."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie import __version__, toml
from coterie.algorithms import ALGORITHMS
from coterie.api import load as load_run
from coterie.backends.processes import Lost, here, is_first, launched, wait_for_all
from coterie.cli import bench as bench_command
from coterie.cli import cluster as devices
from coterie.cli import data as data_commands
from coterie.cli import malloc
from coterie.cli.clusters import choose_number, place, settle, show
from coterie.clustering.kfed import KFed
from coterie.data.own.tables import Columns
from coterie.data.sources.catalogue import use
from coterie.errors import CoterieError, Interrupted, require
from coterie.experiment.experiment import Experiment, Prepared, load
from coterie.experiment.schema import Section, choose, saying
from coterie.files import make_folder, write_whole
from coterie.model_selection import tried
from coterie.model_selection.choice import forget
from coterie.protocol.stages import Progress, check_clustered, is_clustered
from coterie.report import tables
from coterie.report.compare import find, lines, measured
from coterie.report.progress import Watcher
from coterie.runs import onboarding
from coterie.runs.folder import RunFolder

app = typer.Typer(
    help="Clustered and personalised federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands.app, name="data")
app.command()(bench_command.bench)

LOST, WRONG, INTERRUPTED = 1, 2, 130
TOGETHER = ("run", "resume")  # what several processes can do
WIDE = 200  # columns, where there is no terminal to fit into


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what the user can mend is said in one line."""
    warnings.filterwarnings("ignore", message="There is a performance drop")  # of torch, about its own vmap
    malloc.give_back()
    log, handler = logging.getLogger("coterie"), OneLine() if is_first() else logging.NullHandler()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        code = app(args=None if argv is None else list(argv), prog_name="coterie", standalone_mode=False)
        if code == INTERRUPTED:  # typer's own answer to Ctrl-C
            raise KeyboardInterrupt
        wait_for_all()
        return code if isinstance(code, int) else 0
    except Interrupted as stopped:
        _say(str(stopped))
        return INTERRUPTED
    except Lost as problem:
        if here().speaks_of_loss():
            print(f"coterie: {problem}", file=sys.stderr)
        return LOST
    except (CoterieError, OSError) as problem:
        return _refuse(str(problem))
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return INTERRUPTED
    except Exception as problem:
        usage = getattr(problem, "format_message", None)  # typer's own, wherever this version defines them
        if usage is None:
            raise
        return _refuse(usage() or "nothing was asked for; `coterie --help` lists the commands")
    finally:
        log.removeHandler(handler)


def _refuse(message: str) -> int:
    _say(" ".join(message.split()))
    wait_for_all(message)
    return WRONG


def _say(message: str) -> None:
    """Of several processes the first speaks for all."""
    if is_first():
        print(f"coterie: {message}", file=sys.stderr)


class OneLine(logging.Handler):
    """Warnings, and what a run decides by itself; each once, on whatever stderr is then (a progress bar takes it)."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = " ".join(record.getMessage().split())
        if message not in self._said:
            self._said.add(message)
            print(f"coterie: {message}", file=sys.stderr)


def _console() -> Console:
    console = Console(quiet=not is_first())
    return console if console.is_terminal else Console(width=WIDE, quiet=not is_first())


@app.callback(invoke_without_command=True)
def _coterie(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if launched() and context.invoked_subcommand not in TOGETHER:
        raise CoterieError(
            f"under torchrun only {' and '.join(TOGETHER)} are allowed; start coterie without it"
        )
    if version:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.command()
def run(
    experiment: Annotated[Path, typer.Argument(help="A TOML file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A change, such as algorithm.pull=0.5; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the file's seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME-SEED if not given.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Start over in a folder that holds a run.")] = False,
    data_dir: data_commands.Folder = None,
) -> int:
    """Run an experiment."""
    use(data_dir)
    asked = here().agree(lambda: load(experiment, set_ or (), seed))
    folder = out or Path("runs") / f"{asked.name}-{asked.seed}"
    prepared, text = here().agree(lambda: (asked.prepare(), asked.resolved()))
    here().once(lambda: _begin(asked, folder, again, text))
    return _play(prepared, folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    data_dir: data_commands.Folder = None,
) -> int:
    """Go on with a run that was interrupted, from its last checkpoint."""
    use(data_dir)
    if not RunFolder(folder).experiment.is_file():
        raise CoterieError(
            f"{folder} holds no experiment.toml; allowed is the folder of a run that was begun"
        )
    _refuse_from_python(folder, "go on there with coterie.run(..., out=..., resume=True)")
    return _play(here().agree(load(RunFolder(folder).experiment).prepare), folder)


def _refuse_from_python(folder: Path, instead: str) -> None:
    path = RunFolder(folder).experiment
    if path.is_file() and toml.read(path.read_text(encoding="utf-8"), str(folder)).get("made"):
        raise CoterieError(f"{folder} was made in Python; {instead}")


@app.command("choose-clusters")
def choose_clusters(
    experiment: Annotated[Path, typer.Argument(help="A TOML file; its numbers of clusters do not matter.")],
    least: Annotated[int | None, typer.Option(help="The fewest clusters to try; 1 if not given.")] = None,
    most: Annotated[int | None, typer.Option(help="The most clusters to try; 8 if not given.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A change, such as choosing.n_init=4; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the file's seed.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for what is found; runs/NAME-SEED-clusters if not given.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Start over in a folder that holds a choice.")
    ] = False,
    data_dir: data_commands.Folder = None,
) -> int:
    """Choose the number of clusters, on training points that clients hold out."""
    use(data_dir)
    asked = load(experiment, set_ or (), seed)
    given = {name: n for name, n in (("least", least), ("most", most)) if n is not None}
    with saying(Section("", names={name: f"--{name}" for name in given})):
        asked = replace(asked, choosing=replace(asked.choosing, **given))
    methods = [m for m in asked.methods if is_clustered(type(m.stages[-1].algorithm))]
    if not methods:
        check_clustered(type(asked.methods[0].stages[-1].algorithm))
    asked = replace(asked, methods=tuple(replace(method, auto=True) for method in methods))
    folder = out or Path("runs") / f"{asked.name}-{asked.seed}-clusters"
    prepared = asked.prepare()
    stores = [place(asked, folder, method) for method in methods]
    if RunFolder(folder).taken or any(store.taken for store in stores):
        raise CoterieError(f"--out is '{folder}', which holds a run; allowed is another folder")
    for store in stores if again else ():
        forget(store.folder)
    console = _console()
    try:
        with Watcher(console) as watcher:
            for method, store in zip(methods, stores, strict=True):
                show(console, method, choose_number(prepared, method, store.folder, watcher), store.folder)
    except KeyboardInterrupt as stopped:
        raise Interrupted("interrupted; the same command goes on") from stopped
    write_whole(folder / "choice.toml", asked.resolved().encode())
    console.print(f"\nThe choice is in {folder}", markup=False, highlight=False, soft_wrap=True)
    return 0


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders with runs in or below them.")],
) -> int:
    """Finished runs side by side: mean and deviation over seeds."""
    finished, unfinished = find(folders)
    if not finished:
        names = ", ".join(map(str, folders))
        begun = f" ({unfinished[0]} was interrupted: `coterie resume`)" if unfinished else ""
        raise CoterieError(
            f"there is no finished run in {names}{begun}; allowed are folders made by `coterie run`"
        )
    for folder in unfinished:
        logging.getLogger("coterie").warning("%s is not finished and is left out", folder)
    _console().print(tables.compared(lines(finished)))
    return 0


@app.command()
def algorithms(name: Annotated[str | None, typer.Argument(help="One of them, in full.")] = None) -> int:
    """The algorithms, with their settings; or all about one."""
    console = _console()
    if name is None:
        console.print(tables.algorithms(ALGORITHMS))
        return 0
    kind = ALGORITHMS[choose(Section("", {"algorithm": name}), "algorithm", ALGORITHMS)]
    parts = [f"{kind.title()} (runs at: {tables.where(kind)})", inspect.cleandoc(kind.__doc__ or "")]
    settings = tables.meanings(kind)
    parts += [
        "\n".join(["settings, with their defaults:", *settings]) if settings else "settings: none",
        kind.bibtex,
    ]
    console.print("\n\n".join(part for part in parts if part), markup=False, highlight=False, soft_wrap=True)
    return 0


@app.command()
def cluster(
    folder: Annotated[
        Path, typer.Argument(help="One .npz (x), .csv or .parquet (columns of numbers) per device.")
    ],
    out: Annotated[Path, typer.Option(help="The labels: a .parquet or .csv with device, row, label.")],
    clusters: Annotated[str, typer.Option(help="How many over all devices, or auto.")] = "auto",
    local_clusters: Annotated[str, typer.Option(help="How many on each device, or auto.")] = "auto",
    restarts: Annotated[int, typer.Option(help="Starts on each device; the best is kept.")] = 1,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
) -> int:
    """Cluster points that lie on many devices, in one round (k-FED)."""
    k, local = _number("--clusters", clusters), _number("--local-clusters", local_clusters)
    for name, value, least in (("--restarts", restarts, 1), ("--seed", seed, 0)):
        require(value >= least, name, value, f"a whole number from {least}")
    devices.check_out(folder, out)
    points = devices.read_devices(folder)
    model = KFed(k, local or "auto", n_init=restarts, random_state=seed)
    warning = devices.fit(model, points)
    if warning:
        logging.getLogger("coterie").warning(warning)
    devices.write_labels(out, list(points), model)
    console = _console()
    console.print(devices.shown(model))
    console.print(devices.measured(model))
    console.print(f"\nThe labels are in {out}", markup=False, highlight=False, soft_wrap=True)
    return 0


@app.command()
def onboard(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[Path, typer.Argument(help="The client's points: a .npz (x, y), .csv or .parquet.")],
    target: Annotated[
        str | None, typer.Option(help="The target column of a table; that of the run's data, or y.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for its model and what was found.")] = None,
) -> int:
    """Take in a client that a finished run never saw."""
    if out is not None and (out / "onboarded.json").exists():
        raise CoterieError(f"--out is '{out}', which already holds a client; allowed is another folder")
    _refuse_from_python(run, "take clients in there with coterie.load(folder, model, ...).onboard(x, y)")
    finished, settings = load_run(run), load(RunFolder(run).experiment).data
    target = settings.get("target", "y") if target is None else target
    columns = Columns(target, settings.get("split", "split"), tokens=finished.task == "next-character")
    found = finished.take_in(onboarding.read_client(finished.summary, data, columns))
    if out is not None:
        found.save(out)
    console = _console()
    console.print(tables.onboarded(found))
    said = [] if found.margin is None else [f"\nmargin to the second best: {found.margin:.4g}"]
    said += [found.verdict()] if out is None else [found.verdict(), f"\nThe client is in {out}"]
    console.print("\n".join(said), markup=False, highlight=False, soft_wrap=True)
    return 0


def _number(name: str, given: str) -> int | None:
    """None for auto."""
    require(
        given == "auto" or (given.isdecimal() and int(given) >= 1),
        name,
        given,
        "a whole number from 1, or auto",
    )
    return None if given == "auto" else int(given)


# folders


def _begin(asked: Experiment, folder: Path, again: bool, text: str) -> None:
    _make_room(asked, folder, again)
    if asked.several or asked.auto:
        make_folder(folder)
        write_whole(folder / "experiment.toml", text.encode())


def _make_room(experiment: Experiment, folder: Path, again: bool) -> None:
    """Refuse a folder that holds a run, or forget that run."""
    stores = [RunFolder(folder), *(place(experiment, folder, method) for method in experiment.methods)]
    taken = [store for store in stores if store.taken or tried.any_in(store.folder)]
    if taken and not again:
        raise CoterieError(
            f"--out is '{folder}', which already holds a run; allowed is another folder, --again to start over, "
            f"or `coterie resume {folder}`"
        )
    old = [RunFolder(folder / label) for label in _labels_of(folder)]
    for store in (*old, *reversed(taken)):
        forget(store.folder)
        store.clear()


def _labels_of(folder: Path) -> list[str]:
    """The methods of the run that lies in this folder, which need not be those of the run to come."""
    try:
        old = toml.read((folder / "experiment.toml").read_text(encoding="utf-8"), str(folder))
        return [Path(method["label"]).name for method in old["method"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


# playing


def _how_far(store: RunFolder) -> tuple[bool, bool]:
    """Is the run finished, or begun?"""
    return store.finished, store.experiment.exists()


def _play(prepared: Prepared, folder: Path) -> int:
    """All methods that are not finished, one after another; then the table."""
    console = _console()
    try:
        with Watcher(console) as watcher:
            prepared = settle(prepared, folder, watcher)
            experiment = prepared.experiment
            for method in experiment.methods:
                store = place(experiment, folder, method)
                finished, begun = here().once(partial(_how_far, store))
                if not finished:
                    watch = watcher.method(method.label, Progress(method.stages).planned)
                    prepared.play(method, store.folder, resume=begun, watch=watch)
    except KeyboardInterrupt as stopped:
        raise Interrupted(f"interrupted; go on with `coterie resume {folder}`") from stopped
    except Lost as lost:
        raise Lost(f"{lost}; go on with `coterie resume {folder}`") from lost
    if not here().first:
        return 0
    summaries = {m.label: place(experiment, folder, m).summary() for m in experiment.methods}
    console.print(tables.end_of_run({label: measured(one) for label, one in summaries.items()}))
    for label, summary in summaries.items():
        if "privacy" in summary:
            said = f"privacy of {label}: {summary['privacy']['says']}"
            console.print(said, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nThe run is in {folder}", markup=False, highlight=False, soft_wrap=True)
    return 0
