"""`coterie run` and `coterie resume`: the methods of an experiment, one after another, each in its folder."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie import toml
from coterie.backends.torchrun import launched
from coterie.cli.console import open_console, say, show_table
from coterie.cli.data import DataFolder
from coterie.cli.study import go_on, run_study
from coterie.errors import CoterieError, Interrupted, Lost

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment, Prepared
    from coterie.runs.folder import RunFolder

DIVERGED = 3  # the exit code of a run that was stopped because it diverged, or because nobody was heard

Wide = Annotated[
    bool, typer.Option("--wide", help="Every column of the table, however many clusters there are.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code of the folder's model, if you have not run it before.")
]


def run(
    experiment: Annotated[Path, typer.Argument(help="A TOML file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A change, such as algorithm.pull=0.5; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the file's seed.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Every method with each seed, such as 0-4 or 0,2,5.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time, each in a process of its own.")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a setting, such as algorithm.pull=0.01,0.1,1, chosen on points held out of training; "
            "may be repeated."
        ),
    ] = None,
    sweep_seeds: Annotated[
        str | None,
        typer.Option(
            help="The seeds that --sweep chooses on, such as 100-102; those of the runs if not given."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME-SEED if not given.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Start over in a folder that holds a run.")] = False,
    wide: Wide = False,
    data_dir: DataFolder = None,
) -> int:
    """Run an experiment."""
    from coterie.backends.processes import here
    from coterie.data.sources.catalogue import use
    from coterie.experiment.experiment import parse, read
    from coterie.experiment.study import Sweep
    from coterie.experiment.trust import remember
    from coterie.runs.lock import locked

    use(data_dir)
    if sweep_seeds is not None and not sweep:
        raise CoterieError("--sweep-seeds is given without --sweep; allowed are both, or neither")
    file = here().agree(lambda: read(experiment, set_ or (), seed, _seeds(seeds, seed)))
    asked = here().agree(lambda: parse(*file))
    if asked.seeds or jobs is not None or sweep:
        here().agree(_refuse_together)
        tried = Sweep.of(sweep, _sweep_seeds(sweep_seeds)) if sweep else None
        name = asked.name if asked.seeds else f"{asked.name}-{asked.seed}"
        place = out or Path("runs") / name
        well = run_study(file, tried, place, 1 if jobs is None else jobs, again, wide)
        return 0 if well else DIVERGED
    folder = out or Path("runs") / f"{asked.name}-{asked.seed}"
    prepared, text = here().agree(lambda: (asked.prepare(), asked.resolved()))
    here().once(lambda: remember(asked))
    with ExitStack() as held:
        here().once(lambda: held.enter_context(locked(folder)))
        here().once(lambda: _begin(asked, folder, again, text))
        return _play(prepared, folder, wide)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    jobs: Annotated[int | None, typer.Option(help="Runs at a time, each in a process of its own.")] = None,
    wide: Wide = False,
    data_dir: DataFolder = None,
    trust: Trust = False,
) -> int:
    """Go on with a run that was interrupted, from its last checkpoint."""
    from coterie.backends.processes import here
    from coterie.data.sources.catalogue import use
    from coterie.experiment.experiment import load_kept
    from coterie.experiment.study import is_study, refuse_links
    from coterie.experiment.trust import check as check_trust
    from coterie.runs.lock import locked

    use(data_dir)
    if is_study(folder) or jobs is not None:
        here().agree(_refuse_together)
        refuse_from_python(folder, "go on there with coterie.run(..., out=..., resume=True)")
        return 0 if go_on(folder, 1 if jobs is None else jobs, wide, trust) else DIVERGED
    if not (folder / "experiment.toml").is_file():
        raise CoterieError(
            f"{folder} holds no experiment.toml; allowed is the folder of a run that was begun"
        )
    refuse_from_python(folder, "go on there with coterie.run(..., out=..., resume=True)")
    asked = here().agree(lambda: load_kept(folder))
    here().agree(lambda: check_trust(asked, folder, trust))
    here().agree(lambda: refuse_links(asked, folder))
    prepared = here().agree(asked.prepare)
    with ExitStack() as held:
        here().once(lambda: held.enter_context(locked(folder)))
        return _play(prepared, folder, wide)


def _seeds(text: str | None, seed: int | None) -> tuple[int, ...]:
    from coterie.experiment.study import parse_seeds

    if text is not None and seed is not None:
        raise CoterieError(f"--seeds is {text!r} and --seed {seed}; allowed is one of the two")
    return () if text is None else parse_seeds(text)


def _sweep_seeds(text: str | None) -> tuple[int, ...]:
    from coterie.experiment.study import parse_seeds

    return () if text is None else parse_seeds(text, "--sweep-seeds")


def _refuse_together() -> None:
    if launched():
        raise CoterieError(
            "under torchrun one run is played at a time; allowed are --seeds, --jobs and --sweep without"
        )


def refuse_from_python(folder: Path, instead: str) -> None:
    path = folder / "experiment.toml"
    if path.is_file() and toml.load(path).get("made"):
        raise CoterieError(f"{folder} was made in Python; {instead}")


# folders


def _begin(asked: Experiment, folder: Path, again: bool, text: str) -> None:
    from coterie.files import make_folder, write_whole

    _make_room(asked, folder, again)
    if asked.several or asked.auto:
        make_folder(folder)
        write_whole(folder / "experiment.toml", toml.sealed(text).encode())


def _make_room(experiment: Experiment, folder: Path, again: bool) -> None:
    """Refuse a folder that holds a run, or forget that run, whose methods need not be those of the run to come."""
    from coterie.experiment.study import clear as clear_study
    from coterie.experiment.study import is_study, refuse_links
    from coterie.model_selection.choice import anything_tried, forget
    from coterie.report.compare import labels_of
    from coterie.runs.folder import RunFolder
    from coterie.runs.lock import locked

    folders = [folder, *(experiment.folder_of(method, folder) for method in experiment.methods)]
    refuse_links(experiment, folder)
    taken = [RunFolder(one) for one in folders if RunFolder(one).taken or anything_tried(one)]
    study = is_study(folder)
    if (taken or study) and not again:
        raise CoterieError(
            f"--out is '{folder}', which already holds a run; allowed is another folder, --again to start over, "
            f"or `coterie resume {folder}`"
        )
    if study:
        clear_study(folder)
        return
    old = [*(RunFolder(folder / label) for label in labels_of(folder)), *reversed(taken)]
    stores = [s for s in old if s.folder.is_dir() and (s.folder == folder or not s.folder.is_symlink())]
    with ExitStack() as held:
        for store in stores:  # all of them, before any is cleared
            held.enter_context(locked(store.folder))
        for store in stores:
            forget(store.folder)
            store.clear(keep_folder=store.folder == folder)


# playing


def _play(prepared: Prepared, folder: Path, wide: bool) -> int:
    """All methods that are not finished, one after another; then the table."""
    from coterie.backends.processes import here
    from coterie.cli.clusters import resolve_auto
    from coterie.protocol.stages import Progress
    from coterie.report.progress import Watcher
    from coterie.runs.folder import RunFolder
    from coterie.runs.verdict import ended_badly

    console = open_console()
    try:
        with Watcher(console) as watcher:
            prepared = resolve_auto(prepared, folder, watcher)
            experiment = prepared.experiment
            for method in experiment.methods:
                store = RunFolder(experiment.folder_of(method, folder))
                finished, begun = here().once(partial(_how_far, store))
                if finished:
                    here().once(store.mend)
                else:
                    watch = watcher.method(method.label, Progress(method.stages).planned)
                    prepared.play(method, store.folder, resume=begun, watch=watch)
    except KeyboardInterrupt as stopped:
        raise Interrupted(f"interrupted; go on with `coterie resume {folder}`") from stopped
    except Lost as lost:
        raise Lost(f"{lost}; go on with `coterie resume {folder}`") from lost
    if here().first:
        _show(experiment, folder, wide)
    stores = [RunFolder(experiment.folder_of(method, folder)) for method in experiment.methods]
    return here().once(lambda: DIVERGED if any(ended_badly(one.summary()) for one in stores) else 0)


def _how_far(store: RunFolder) -> tuple[bool, bool]:
    """Is the run finished, or begun?"""
    return store.finished, store.experiment.exists()


def _show(experiment: Experiment, folder: Path, wide: bool) -> None:
    """The table at the end, and who is in which cluster."""
    from coterie.experiment.reference import compare_with_fedavg
    from coterie.report import tables
    from coterie.report.clusters import at_the_end, clusters_of
    from coterie.report.compare import measured
    from coterie.report.verdicts import lines
    from coterie.runs.client_table import read_lines
    from coterie.runs.folder import RunFolder

    console = open_console()
    stores = {method.label: RunFolder(experiment.folder_of(method, folder)) for method in experiment.methods}
    summaries = compare_with_fedavg(stores)
    numbers = {label: measured(one, wide) for label, one in summaries.items()}
    show_table(console, tables.end_of_run(numbers, console.width))
    clusters = {label: clusters_of(*read_lines(store)) for label, store in stores.items()}
    if any(clusters.values()):
        say(console, "\n".join(["", *at_the_end(clusters, console.width)]))
    for line in lines(summaries):
        say(console, line)
    for label, summary in summaries.items():
        if "privacy" in summary:
            say(console, f"privacy of {label}: {summary['privacy']['says']}")
    say(console, f"\nThe run is in {folder}; `coterie show {folder}` shows it client by client")
