"""What the pictures are drawn with: texts, boxes and arrows, in pixels of a page that is 900 wide."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import FancyBboxPatch

Colors = tuple[str, str]  # of a box: inside and edge

WIDTH, MARGIN = 900, 8
INK, GREY, RULE = "#1f2a36", "#56636f", "#8fa0b0"
PLAIN: Colors = ("#ffffff", RULE)
# after Okabe and Ito: colour-blind readers can distinguish them
BLUE: Colors = ("#e4f0f8", "#0072b2")
ORANGE: Colors = ("#fdf1e0", "#b96a00")
GREEN: Colors = ("#def3ec", "#00795a")
PURPLE: Colors = ("#f8e8f1", "#a8487f")
BOLD = {"weight": "bold"}
CODE = {"family": "monospace", "weight": "bold"}


def canvas(height: float) -> Axes:
    """The file has twice as many pixels."""
    axes = Figure(figsize=(WIDTH / 100, height / 100), dpi=200).add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return axes


def write(
    axes: Axes, x: float, y: float, text: str, size: float = 11, color: str = INK, **style: Any
) -> None:
    axes.text(x, y, text, fontsize=0.72 * size, color=color, va="center_baseline", **style)


def box(
    axes: Axes, x: float, y: float, width: float, height: float, colors: Colors, corner: float = 5
) -> None:
    fill, edge = colors
    shape = f"round,pad=0,rounding_size={corner}"
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, shape, facecolor=fill, edgecolor=edge, linewidth=0.8)
    )


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK) -> None:
    """Under the boxes that are drawn after it."""
    head = {"arrowstyle": "-|>,head_length=0.35,head_width=0.18", "color": color, "lw": 1}
    axes.annotate("", end, start, arrowprops={**head, "shrinkA": 0, "shrinkB": 0}, zorder=1)


def width_of(text: str, size: float, **style: Any) -> float:
    font = get_font(findfont(FontProperties(**style)))
    font.set_size(100, 72)  # large, so that rounding does not count
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64 * size / 100  # it measures in 64ths


def wrapped(text: str, width: float, size: float = 11) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def collisions(axes: Axes) -> list[tuple[str, str]]:
    """Texts that lie on each other or beyond the edge."""
    axes.figure.draw_without_rendering()
    page = axes.get_window_extent()
    texts = [(text.get_text(), text.get_window_extent()) for text in axes.texts if text.get_text()]
    found = [(text, "the edge") for text, at in texts if at.x1 > page.x1 or at.y0 < page.y0]
    for i, (text, at) in enumerate(texts):
        found += [(text, other) for other, there in texts[:i] if at.overlaps(there)]
    return found
