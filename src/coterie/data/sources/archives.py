"""Files out of archives that somebody else made: only those asked for, and never outside of a folder."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath

from coterie.errors import CoterieError


def take(archive: Path, wanted: Mapping[str, str], into: Path) -> None:
    """Write the members of a tar archive that are wanted, each under a name of ours below `into`."""
    left = dict(wanted)
    with _opened(archive) as tar:
        for member in tar:
            name = _inside(member, archive)
            if name not in left:
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise CoterieError(f"{archive.name}: {name} is not a plain file; nothing of it is taken")
            target = into / left.pop(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
    if left:
        raise CoterieError(f"{archive.name} has no {', '.join(left)}; it is another package than expected")


def names(archive: Path) -> list[str]:
    """Of all members."""
    with _opened(archive) as tar:
        return [_inside(member, archive) for member in tar]


def _inside(member: tarfile.TarInfo, archive: Path) -> str:
    """The member's name, if it stays inside of the folder that it is unpacked in."""
    path = PurePosixPath(member.name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in member.name
    if outside or not (member.isfile() or member.isdir()):
        kind = "a path outside of the folder" if outside else "a link or a device"
        raise CoterieError(f"{archive.name} has a member {member.name!r}, {kind}; nothing of it is taken")
    return str(path)


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, BadGzipFile) as problem:
        size = archive.stat().st_size
        raise CoterieError(
            f"{archive.name} ({size} bytes) is not a whole tar archive ({problem})"
        ) from problem
