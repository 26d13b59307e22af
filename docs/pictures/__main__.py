"""Draws explanation/rooms.png and explanation/round.png from the code, and reproduction/*.png from results.

What a picture shows is also in its file, as text; tests/test_rooms.py compares that with the code.
`python docs/pictures` draws all.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import one_round
import rooms
from canvas import collisions as collisions
from matplotlib.axes import Axes
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from coterie.reproduction.figures import draw
from coterie.reproduction.items import SIZES, load, names
from coterie.reproduction.results import Results, place

FOLDER = Path(__file__).parents[1] / "explanation"
PICTURES = {"rooms.png": rooms.draw, "round.png": one_round.draw}


def save(name: str) -> None:
    axes, shown = PICTURES[name]()
    about = PngInfo()
    about.add_text("shows", json.dumps(shown))
    drawn(axes).save(FOLDER / name, optimize=True, pnginfo=about)


def drawn(axes: Axes) -> Image.Image:
    """In 256 colours, which take a third of the bytes."""
    file = io.BytesIO()
    axes.figure.savefig(file)
    return Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE)


def saved(name: str) -> object:
    """What the picture in the file shows."""
    with Image.open(FOLDER / name) as picture:
        return json.loads(picture.info["shows"])


def save_figures() -> None:
    """Of the papers' figures that were run, in the largest size."""
    experiments, folder = FOLDER.parents[1] / "experiments", FOLDER.parent / "reproduction"
    for name in names(experiments):
        item = load(name, experiments)
        each = [
            Results.load(place(experiments / "results", item, size), item, size) for size in reversed(SIZES)
        ]
        found = next((results for results in each if results.lines), None)
        if found is not None and item.figure:
            draw(item, found, folder / f"{name}.png")


if __name__ == "__main__":
    for name in PICTURES:
        save(name)
    save_figures()
