"""What is published: an sdist, the wheel built from it, and that wheel in an empty environment, in another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).parent.parent.parent
LARGEST = 5e6  # bytes of an sdist
EXPERIMENT = """
rounds = 2
[data]
source = "digits"
clients = 4
[model]
name = "linear"
[algorithm]
name = "FedAvg"
"""

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path) -> str:
    """What it prints; nothing of this checkout is on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _environment(folder: Path, *packages: str | Path) -> Path:
    """The Python of a virtual environment with these packages and what they need, in the versions we test."""
    _run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "-c", ROOT / "constraints.txt", *packages, cwd=folder)
    return python


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it, so that the sdist has all that is needed."""
    folder = tmp_path_factory.mktemp("built")
    python = _environment(folder / "hatch", "hatchling")
    _run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    name = f"coterie-{coterie.__version__}"
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    _run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=folder / name)
    return folder


def test_the_sdist_has_what_is_needed_and_nothing_huge(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {str(Path(*Path(name).parts[1:])) for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "Makefile"} <= files
    assert {"src/coterie/__init__.py", "src/coterie/py.typed", "tests/packaging/test_wheel.py"} <= files
    tops = {Path(name).parts[0] for name in files}
    assert not tops & {".ci", ".venv", ".git", ".bench", "runs", "dist", "build"}
    assert not [name for name in files if "__pycache__" in name]
    assert sdist.stat().st_size < LARGEST


def test_the_wheel_is_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    here = ROOT / "src"
    written = {str(path.relative_to(here)) for path in here.rglob("*.py")}
    papers = ("fedsoft", "kfed", "wecfl", "fedspd")
    items = [path for paper in papers for path in (ROOT / "experiments" / paper).glob("*.toml")]
    assert len(items) == 84
    packed = {f"coterie/reproduction/items/{path.parent.name}/{path.name}" for path in items}
    assert files == {*written, *packed, "coterie/py.typed"}


def test_the_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = _environment(tmp_path / "venv", wheel)
    command, work = python.parent / "coterie", tmp_path / "work"
    work.mkdir()
    place = _run(python, "-c", "import coterie; print(coterie.__file__)", cwd=work)
    assert Path(place.strip()).is_relative_to(tmp_path / "venv")
    assert "choose-clusters" in _run(command, "--help", cwd=work)
    assert _run(command, "--version", cwd=work) == f"coterie {coterie.__version__}\n"
    assert "FedSPD" in _run(command, "algorithms", cwd=work)
    (work / "small.toml").write_text(EXPERIMENT)
    assert "FedAvg: round 2/2" in _run(command, "run", "small.toml", "--out", "run", cwd=work)
    assert (work / "run" / "summary.json").is_file()
    assert "mcmahan2017" in _run(command, "cite", "run", cwd=work)
    shutil.rmtree(tmp_path / "venv")  # torch is large, and pytest keeps the folders of its last runs
