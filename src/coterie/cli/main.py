"""The app with its commands, and what is said and returned when one cannot be done."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coterie import __version__
from coterie.backends.torchrun import is_first, launched
from coterie.cli import data, malloc
from coterie.cli.algorithms import algorithms
from coterie.cli.bench import bench
from coterie.cli.cluster import cluster
from coterie.cli.clusters import choose_clusters
from coterie.cli.console import open_console, say, show_table
from coterie.cli.onboard import onboard
from coterie.cli.reproduce import reproduce
from coterie.cli.run import resume, run
from coterie.cli.show import show
from coterie.errors import CoterieError, Interrupted, Lost

app = typer.Typer(
    help="Clustered and personalised federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LOST, WRONG, INTERRUPTED = 1, 2, 130  # and that of run.DIVERGED
LONGEST = 1200  # characters of a message; a value in it may have any length, ...
LONG = 300  # ... or have so many without a space
NO_MEMORY = (
    "there is not enough memory for this; try fewer clients or points, a smaller model, or another machine"
)
TOGETHER = ("run", "resume")  # what several processes can do


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what the user can mend is said in one line."""
    warnings.filterwarnings("ignore", message="There is a performance drop")  # of torch, about its own vmap
    for stream in (sys.stdout, sys.stderr):  # a terminal may know ASCII alone
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if (
        argv is None
    ):  # Python processes that a command starts look for modules in the current folder no more than it
        os.environ["PYTHONSAFEPATH"] = "1"
    malloc.give_back()
    log, handler = logging.getLogger("coterie"), OneLine() if is_first() else logging.NullHandler()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        code = app(args=None if argv is None else list(argv), prog_name="coterie", standalone_mode=False)
        if code == INTERRUPTED:  # typer's own answer to Ctrl-C
            raise KeyboardInterrupt
        _wait_for_all()
        return code if isinstance(code, int) else 0
    except Interrupted as stopped:
        _say(str(stopped))
        return INTERRUPTED
    except Lost as problem:
        return _say_of_loss(problem)
    except (CoterieError, OSError) as problem:
        return _refuse(str(problem))
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return INTERRUPTED
    except MemoryError:
        return _refuse(NO_MEMORY)
    except Exception as problem:
        if _is_of_memory(problem):
            return _refuse(NO_MEMORY)
        usage = getattr(problem, "format_message", None)  # typer's own, wherever this version defines them
        if usage is None:
            raise
        return _refuse(usage())
    finally:
        log.removeHandler(handler)


def _is_of_memory(problem: Exception) -> bool:
    """PyTorch has no class of its own for it, on a CPU."""
    words = (
        "can't allocate memory",
        "not enough memory",
        "out of memory",
        "Storage size calculation overflowed",
    )
    return isinstance(problem, RuntimeError) and any(word in str(problem) for word in words)


def _refuse(message: str) -> int:
    """Without a command the help is printed, and there is no message."""
    if message:
        _say(" ".join(message.split()))
    _wait_for_all(message)
    return WRONG


def _say(message: str) -> None:
    """Of several processes the first speaks for all."""
    if is_first():
        print(f"coterie: {_shortened(message)}", file=sys.stderr)


def _shortened(message: str) -> str:
    """What was wrong, and at the end what is allowed, are kept; a word longer than any file's name, no path, is not."""
    message = re.sub(
        rf"[^\s/]{{{LONG},}}", lambda word: f"{word[0][:20]}... ({len(word[0])} characters)", message
    )
    return message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"


def _say_of_loss(problem: Lost) -> int:
    from coterie.backends.processes import here

    if here().speaks_of_loss():
        print(f"coterie: {problem}", file=sys.stderr)
    return LOST


def _wait_for_all(reason: str | None = None) -> None:
    if launched():
        from coterie.backends.processes import wait_for_all

        wait_for_all(reason)


class OneLine(logging.Handler):
    """Warnings, and what a run decides by itself; each once, on whatever stderr is then (a progress bar takes it)."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = " ".join(record.getMessage().split())
        if message not in self._said:
            self._said.add(message)
            print(f"coterie: {_shortened(message)}", file=sys.stderr)


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


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders with runs in or below them.")],
    wide: Annotated[
        bool, typer.Option("--wide", help="Every column, however many clusters there are.")
    ] = False,
) -> int:
    """Finished runs side by side: mean and deviation over seeds."""
    from coterie.report import tables
    from coterie.report.compare import find, lines

    finished, unfinished = find(folders, wide)
    if not finished:
        names = ", ".join(map(str, folders))
        begun = f" ({unfinished[0]} was interrupted: `coterie resume`)" if unfinished else ""
        raise CoterieError(
            f"there is no finished run in {names}{begun}; allowed are folders made by `coterie run`"
        )
    for folder in unfinished:
        logging.getLogger("coterie").warning("%s is not finished and is left out", folder)
    console = open_console()
    show_table(console, tables.compared(lines(finished), console.width))
    return 0


def cite(
    run: Annotated[Path, typer.Argument(help="The folder of a run, finished or begun.")],
) -> int:
    """What to cite: BibTeX of everything that a run used."""
    from coterie.report.citation import citation

    say(open_console(), citation(run))
    return 0


app.command()(run)
app.command()(resume)
app.command("choose-clusters")(choose_clusters)
app.command()(show)
app.command()(compare)
app.command()(cite)
app.command()(algorithms)
app.command()(cluster)
app.command()(onboard)
app.add_typer(data.app, name="data")
app.command()(bench)
app.command()(reproduce)
