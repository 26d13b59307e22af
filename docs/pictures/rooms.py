"""The rooms of src/coterie as stairs: arrows, the imports, lead down."""

from __future__ import annotations

import ast
import configparser
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grimp
from canvas import BLUE, BOLD, GREY, INK, MARGIN, RULE, WIDTH, arrow, box, canvas, width_of, wrapped, write
from matplotlib.axes import Axes
from matplotlib.patches import Circle

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coterie"

# what the picture shows


def import_graph() -> grimp.ImportGraph:
    """Every import of one file of coterie by another, those inside functions and those for types included."""
    return grimp.build_graph("coterie", cache_dir=None)


def room_of(module: str) -> str:
    """The package's own file, which has the names that users import, is a room too."""
    return module.split(".")[1] if "." in module else module


def rooms() -> dict[str, Any]:
    """All of it except for the numbers of lines."""
    graph = import_graph()
    modules = sorted(graph.modules - {"coterie.__main__"})  # no room: it calls cli
    pairs = [(m, other) for m in modules for other in graph.find_modules_directly_imported_by(m)]
    number = Counter((room_of(m), room_of(other)) for m, other in pairs)
    imports = {room_of(m): dict[str, int]() for m in modules}
    for one, other in sorted(number):
        if one != other:
            imports[one][other] = number[one, other]
    return {
        "layers": layers(imports["coterie"]),
        "files": dict(Counter(room_of(m) for m in modules)),
        "says": {room: summary(room) for room in imports},
        "imports": imports,
    }


def layers(of_the_package: Iterable[str]) -> list[list[str]]:
    """As .importlinter has them, and the package's own file right above the rooms that it imports."""
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    lines = rules["importlinter:contract:rooms"]["layers"].strip().splitlines()
    found = [[room_of(module.strip()) for module in line.split("|")] for line in lines]
    below = next(i for i, names in enumerate(found) if set(names) & set(of_the_package))
    return [*found[:below], ["coterie"], *found[below:]]


def files(room: str) -> list[Path]:
    """Its `__init__.py` first, if it has one."""
    if room == "coterie":
        return [PACKAGE / "__init__.py"]
    return sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]


def summary(room: str) -> str:
    """The first line of its docstring."""
    text = ast.get_docstring(ast.parse(files(room)[0].read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def size(room: str) -> str:
    each = [len(file.read_text(encoding="utf-8").splitlines()) for file in files(room)]
    return (f"{len(each)} files, " if len(each) > 1 else "") + f"{sum(each):,} lines"


# how it shows it

COLUMN = 19  # pixels for each room that others import
SHADES = ((15, "#00558a", "white"), (8, "#3f86b5", "white"), (4, "#8cbbd9", INK), (1, "#c3dcec", INK))


@dataclass(frozen=True)
class Step:
    """A room: as wide as its place in the order is low, so that each has a bit of its own for arrows to end on."""

    name: str
    size: str
    says: list[str]
    beside: bool  # is what it says on the line of its name?
    top: float
    right: float

    @property
    def bottom(self) -> float:
        return self.top + (22 if self.beside else 23 + 14 * len(self.says))

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    @property
    def column(self) -> float:
        """Where arrows come down."""
        return self.right - COLUMN / 2


def stairs(found: dict[str, Any]) -> dict[str, Step]:
    imported = {name for others in found["imports"].values() for name in others}
    steps: dict[str, Step] = {}
    top, right = 46.0, float(WIDTH - MARGIN - COLUMN * len(imported))
    for layer in found["layers"]:
        for name in layer:
            right += COLUMN if name in imported else 0
            steps[name] = step(name, found["says"][name], top, right)
            top = steps[name].bottom + 1
        top += 7
    return steps


def step(name: str, says: str, top: float, right: float) -> Step:
    width, how_large = right - MARGIN - 14, size(name)
    beside = wrapped(says, width - width_of(name, 13, **BOLD) - width_of(how_large, 11) - 30)
    if len(beside) == 1:
        return Step(name, how_large, beside, True, top, right)
    return Step(name, how_large, wrapped(says, width), False, top, right)


def draw() -> tuple[Axes, object]:
    found = rooms()
    steps = stairs(found)
    axes = canvas(max(one.bottom for one in steps.values()) + MARGIN)
    write(axes, MARGIN, 14, "A room imports only rooms below it", 14, **BOLD)
    write(axes, MARGIN, 32, "Rooms without a gap between them do not import each other.", color=GREY)
    dot(axes, 492, 14, 12)
    write(axes, 506, 14, "so many imports: files of the room on the left import", color=GREY)
    write(axes, 506, 30, "files of the room that the arrow leads down to", color=GREY)
    for one in steps.values():
        first = [
            importer.middle for importer in steps.values() if one.name in found["imports"][importer.name]
        ]
        if first:
            arrow(axes, (one.column, first[0]), (one.column, one.top), RULE)
    for one in steps.values():
        draw_step(axes, one)
        draw_imports(axes, one, {steps[name].column: n for name, n in found["imports"][one.name].items()})
    return axes, found


def draw_step(axes: Axes, one: Step) -> None:
    left, line = MARGIN + 8, one.top + 11
    box(axes, MARGIN, one.top, one.right - MARGIN, one.bottom - one.top, BLUE, 3)
    write(axes, left, line, one.name, 13, **BOLD)
    write(axes, one.right - 8, line, one.size, color=GREY, ha="right")
    if one.beside:
        write(axes, left + width_of(one.name, 13, **BOLD) + 12, line, one.says[0])
        return
    for i, text in enumerate(one.says):
        write(axes, left, line + 16 + 14 * i, text)


def draw_imports(axes: Axes, one: Step, imports: dict[float, int]) -> None:
    """How many, by the column of the room that is imported."""
    if imports:
        axes.plot([one.right, max(imports)], [one.middle, one.middle], color=RULE, lw=0.6)
    for column, number in imports.items():
        dot(axes, column, one.middle, number)


def dot(axes: Axes, x: float, y: float, number: int) -> None:
    color, ink = next((color, ink) for least, color, ink in SHADES if number >= least)
    axes.add_patch(Circle((x, y), 8.2, facecolor=color, edgecolor="white", linewidth=0.8, zorder=3))
    write(axes, x, y, f"{number}", 9.5, ink, ha="center", zorder=4)
