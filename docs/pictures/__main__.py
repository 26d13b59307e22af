"""Draws explanation/rooms.png and explanation/round.png from the code: `python docs/pictures`.

What a picture shows is also in its file, as text; tests/test_rooms.py compares that with the code.
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


if __name__ == "__main__":
    for name in PICTURES:
        save(name)
