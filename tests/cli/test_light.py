"""What starts at once starts without heavy libraries: seen in the modules of a fresh process, not on a clock."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie import ALGORITHMS, lazy
from coterie.data.sources.catalogue import ENVIRONMENT
from coterie.experiment.algorithm_docs import algorithm_docs
from coterie.experiment.field_docs import explained

HEAVY = {
    "matplotlib",
    "networkx",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "scipy",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "typer",
}
ROOT = Path(coterie.__file__).parent.parent
COMMAND = """
import sys
from coterie.cli.main import main
code = main({})
assert code == 0, code
"""


def _modules_after(program: str, folder: Path) -> set[str]:
    """What a fresh process has imported when it is done."""
    program += "\nimport sys\nprint('\\n' + repr(sorted(sys.modules)))"
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    return set(ast.literal_eval(done.stdout.splitlines()[-1]))


def test_importing_coterie_imports_nothing_else(tmp_path: Path) -> None:
    found = _modules_after("import coterie", tmp_path)
    assert {name for name in found if name.startswith("coterie")} == {
        "coterie",
        "coterie.lazy",
        "coterie.version",
    }
    assert not found & {"torch", "numpy", *HEAVY}


def test_a_run_needs_torch_and_nothing_heavy_besides(tmp_path: Path) -> None:
    program = """
import coterie
names = [name for name in coterie.__all__ if name not in ("KFed", "recipes")]  # these are scikit-learn's
for name in names:
    getattr(coterie, name)
"""
    assert not _modules_after(program, tmp_path) & HEAVY


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["algorithms"], ["algorithms", "FedProx+"]])
def test_these_commands_never_import_torch(arguments: list[str], tmp_path: Path) -> None:
    found = _modules_after(COMMAND.format(arguments), tmp_path)
    assert not found & {
        "torch",
        "numpy",
        *HEAVY - {"rich", "typer", "pydantic"},
    }  # which typer imports itself


@pytest.mark.parametrize(
    "command",
    ["run", "resume", "choose-clusters", "show", "compare", "cite", "cluster", "onboard", "data", "bench"],
)
def test_neither_does_the_help_of_a_command(command: str, tmp_path: Path) -> None:
    assert "torch" not in _modules_after(COMMAND.format([*command.split(), "--help"]), tmp_path)


def test_a_failing_command_needs_no_torch_either(tmp_path: Path) -> None:
    program = "from coterie.cli.main import main\nassert main(['algorithms', 'FedAvgg']) == 2"
    assert "torch" not in _modules_after(program, tmp_path)


# the door


def test_the_door_gives_every_name() -> None:
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
    assert set(coterie.__all__) <= set(dir(coterie))
    assert {kind.__name__ for kind in ALGORITHMS.values()} <= set(coterie.__all__)


def test_everything_at_once() -> None:
    names: dict[str, object] = {}
    exec("from coterie import *", names)
    assert set(coterie.__all__) <= set(names)
    assert names["FedAvg"] is coterie.FedAvg is coterie.algorithms.FedAvg


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'FedAvgg'"):
        _ = coterie.FedAvgg
    with pytest.raises(ImportError, match="FedAvgg"):
        exec("from coterie import FedAvgg")


def test_names_lie_where_the_door_says() -> None:
    for name, module in lazy.imports("coterie.algorithms").items():
        if module.startswith("coterie.algorithms.") and name != "ALGORITHMS":
            assert getattr(coterie, name).__module__ == module


# read from the source


def test_algorithms_are_listed_in_their_order() -> None:
    assert list(algorithm_docs()) == list(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_read_from_the_source_is_what_python_knows(name: str) -> None:
    read, kind = algorithm_docs()[name], ALGORITHMS[name]
    assert read.title == kind.title() == name
    assert read.text == inspect.cleandoc(kind.__doc__ or "")
    assert read.needs_server == kind.needs_server
    assert read.bibtex == kind.bibtex
    assert read.settings == explained(kind)


def test_the_help_names_the_variable_of_the_data_folder(capsys: pytest.CaptureFixture[str]) -> None:
    from coterie.cli.main import main

    assert main(["data", "--help"]) == 0
    assert f"${ENVIRONMENT}" in capsys.readouterr().out
