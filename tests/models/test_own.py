"""A model of the user's own: looked at before it is called."""

from __future__ import annotations

import py_compile
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from coterie import CoterieError
from coterie.models import beside, build
from coterie.models.own import sources_of

NETS = """
from torch import nn
from layers_of_mine import wide
from coterie import builds_model

class Net(nn.Module):
    def __init__(self, width: int = 3):
        super().__init__()
        self.layer = wide(width)

def annotated(width: int = 3) -> nn.Module:
    return wide(width)

def in_words(width: int = 3) -> "nn.Linear":
    return wide(width)

@builds_model
def marked(width=3):
    return wide(width)

def neither(width=3):
    raise AssertionError("it was called")

class NoModel:
    def __init__(self):
        raise AssertionError("it was called")

made = Net()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    (tmp_path / "layers_of_mine.py").write_text(
        "from torch import nn\n\ndef wide(n):\n    return nn.Linear(2, n)\n"
    )
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Net", "annotated", "in_words", "marked"])
def test_models_and_what_says_it_builds_one(folder: Path, name: str) -> None:
    made = build(f"nets_of_mine:{name}", (2,), 4, folder=folder, width=5)()
    assert sum(p.numel() for p in made.parameters()) == 15


@pytest.mark.parametrize("name", ["neither", "NoModel", "made", "nn.init.zeros_"])
def test_anything_else_is_refused_and_not_called(folder: Path, name: str) -> None:
    with pytest.raises(CoterieError, match="which is not known to build a model; allowed is a subclass of"):
        build(f"nets_of_mine:{name}", (2,), 4, folder=folder)()


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:exec", "os.path:join"])
def test_python_itself_has_no_models(name: str, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="of Python itself, which has no models"):
        build(name, (2,), 4, command=f"touch {tmp_path / 'x'}")()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["torch:load", "torch.hub:load", "torch.nn.init:zeros_"])
def test_functions_of_libraries_that_build_no_model(name: str) -> None:
    with pytest.raises(CoterieError, match="which is not known to build a model"):
        build(name, (2,), 4)


def test_a_file_beside_the_experiment_stands_in_for_no_library(folder: Path) -> None:
    """It is found last; and a library that is loaded cannot be replaced."""
    (folder / "matplotlib.py").write_text("raise AssertionError('it was run')")
    (folder / "torch.py").write_text("raise AssertionError('it was run')")
    build("nets_of_mine:Net", (2,), 4, folder=folder)
    assert sys.path[0] != str(folder)
    assert sys.path[-1] == str(folder)
    with pytest.raises(
        CoterieError, match="'torch' is loaded already, from elsewhere; give yours another name"
    ):
        build("torch:Net", (2,), 4, folder=folder)


def test_each_experiment_has_its_own_module_of_a_name(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "nets_of_mine.py").write_text("from torch import nn\n\nclass Net(nn.Linear): pass\n")
    build("nets_of_mine:Net", (2,), 4, folder=folder)
    assert "in_features" in str(
        build("nets_of_mine:Net", (2,), 4, folder=other, in_features=3, out_features=3)()
    )


def test_a_broken_module_is_said_in_a_sentence(folder: Path) -> None:
    (folder / "broken_of_mine.py").write_text("def")
    with pytest.raises(CoterieError, match="name is 'broken_of_mine:Net', which cannot be imported"):
        build("broken_of_mine:Net", (2,), 4, folder=folder)


def test_its_source_is_found_without_running_it(folder: Path) -> None:
    (folder / "nets_of_mine.py").write_text("raise AssertionError('it was run')")
    assert sources_of("nets_of_mine:Net", folder) == [folder / "nets_of_mine.py"]
    assert sources_of("no_such_module:Net", folder) == []


def test_all_files_of_packages_beside_it_are_found(folder: Path) -> None:
    for name, code in (
        ("mine/__init__.py", ""),
        ("mine/nets.py", "from plain_folder.inner import x\nimport broken_one"),
        ("plain_folder/inner.py", "import json, mine.nets"),
        ("broken_one.py", "this is no Python"),
        ("of_nobody.py", ""),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    found = [str(path.relative_to(folder)) for path in sources_of("mine.nets:Net", folder)]
    assert found == ["mine/nets.py", "broken_one.py", "mine/__init__.py", "plain_folder/inner.py"]


def test_so_is_what_an_import_loads_that_is_no_source_or_behind_a_link(folder: Path) -> None:
    for name in ("mine/__init__.py", "elsewhere/linked.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "mine" / f"fast{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF\0")
    (folder / "mine" / "inner").symlink_to(folder / "elsewhere")
    (folder / "elsewhere" / "round").symlink_to(folder / "mine")
    found = [str(path.relative_to(folder)) for path in sources_of("mine:Net", folder)]
    assert found == ["mine/__init__.py", f"mine/fast{EXTENSION_SUFFIXES[0]}", "mine/inner/linked.py"]


def test_installed_packages_below_it_are_loaded_as_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of .venv; but all of an experiment that lies in an environment is read from source."""
    monkeypatch.setattr(beside, "_INSTALLED", (str(folder / ".venv"),))
    inner = folder / ".venv" / "experiments"
    (inner / "mine").mkdir(parents=True)
    build("nets_of_mine:Net", (2,), 4, folder=folder)

    def from_source(place: Path) -> bool:
        (place / "looked_for.py").touch()
        found = PathFinder.find_spec("looked_for", [str(place)])
        return found is not None and isinstance(found.loader, beside.FromSource)

    assert from_source(folder)
    assert not from_source(inner / "mine")
    beside.open_to_imports(inner)
    assert from_source(inner / "mine")


@pytest.mark.parametrize("module", ["nets_of_mine", "layers_of_mine"])
def test_bytecode_beside_a_module_is_not_run(folder: Path, module: str) -> None:
    """It may be that of other code; Python itself would take it."""
    (folder / "planted.py").write_text("raise SystemExit('bytecode was run')")
    py_compile.compile(
        str(folder / "planted.py"),
        cache_from_source(str(folder / f"{module}.py")),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert build("nets_of_mine:Net", (2,), 4, folder=folder)() is not None
