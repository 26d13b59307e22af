"""The memory of a process and all that it started."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def peak_memory(pid: int) -> int:
    """Bytes: the sum of what each of its processes alive now had at most. 0 where the system does not say.

    What processes share, such as libraries, counts in each of them.
    """
    return sum(_most(one) for one in descendants(pid))


def descendants(pid: int) -> list[int]:
    """The process, what it started, what these started, and so on."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        parent = _field(folder / "status", "PPid")
        if parent is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for one in found:  # grows while it is walked
        found += children.get(one, [])
    return found


def _most(pid: int) -> int:
    return 1024 * (_field(PROC / str(pid) / "status", "VmHWM") or 0)


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # it has ended
        return None
    value = next((line.split()[1] for line in lines if line.startswith(name + ":")), None)
    return None if value is None else int(value)
