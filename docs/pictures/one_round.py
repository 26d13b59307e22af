"""One round, at a server and over a graph: who does what, and what is sent."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_args

import torch
from canvas import (
    BLUE,
    BOLD,
    CODE,
    GREEN,
    GREY,
    INK,
    MARGIN,
    ORANGE,
    PLAIN,
    PURPLE,
    WIDTH,
    Colors,
    arrow,
    box,
    canvas,
    width_of,
    wrapped,
    write,
)
from matplotlib.axes import Axes

from coterie.algorithms import FedSoft
from coterie.prng import id_keys
from coterie.protocol import Algorithm, Clients, Header, Privacy, RoundContext, State
from coterie.protocol import algorithm as algorithm_file
from coterie.protocol.clients import Question
from coterie.protocol.fields import Declared
from coterie.protocol.remote import checked

# names, as the code has them


def steps() -> dict[str, tuple[str, str]]:
    """Of a round, as protocol/algorithm.py explains them: whose each is, and what it does."""
    found = re.findall(r"^ {4}(\w+) +at the (\w+) +(.+)$", algorithm_file.__doc__ or "", re.MULTILINE)
    return {name: (whose, what) for name, whose, what in found}


def call(function: Callable[..., Any]) -> str:
    """As one writes it: plan(state, reports)."""
    arguments = [name for name in inspect.signature(function).parameters if name != "self"]
    return f"{function.__name__}({', '.join(arguments)})"


def question(name: str) -> str:
    assert name in get_args(Question), f"clients are not asked {name!r}"
    return f'"{name}"'


def offers() -> tuple[list[str], list[str]]:
    """The fields that FedSoft offers to clients that are to report, and to those that are to train."""
    ids, algorithm = ("a", "b"), FedSoft(n_clusters=2)
    everyone = torch.ones(len(ids), dtype=torch.bool)
    rows: Any = None  # no offer needs to know the columns of a model
    state = algorithm.begin(State(torch.zeros(1, 2, 1), id_keys(ids), rows, True, RoundContext(0), everyone))
    asked, (_, offer) = algorithm.ask(state), algorithm.plan(state, None)
    assert asked is not None
    return list(asked.fields), list(offer.fields)


ASK = f"{Clients.__name__}.{call(Clients.ask)}"
DELIVER = f"{Clients.__name__}.{call(Clients.deliver)}"
PROTECT = f"{Privacy.__name__}.{Privacy.protect.__name__}"
CHECK = f"{Header.__name__}.{Header.check.__name__}"
CHECKED = checked.__name__

# the picture


def draw() -> tuple[Axes, object]:
    axes = canvas(846)
    server(axes)
    graph(axes, 350)
    legend(axes, 682)
    return axes, [text.get_text() for text in axes.texts if text.get_text()]


def server(axes: Axes) -> None:
    """Time goes down; what goes to the right is asked, what comes back is answered."""
    title(axes, 16, "At a server", "the fields of the messages are those of FedSoft")
    box(axes, 8, 32, 310, 292, BLUE)
    several(axes, 594, 32, 298, 292, ORANGE)
    heading(axes, 163, 49, "the aggregator: a server", BLUE)
    heading(axes, 452, 49, "the seam")
    heading(axes, 743, 49, "the clients", ORANGE)
    code(axes, 452, 68, ASK)
    for name, top, bottom in (("ask", 90, 128), ("plan", 152, 248), ("combine", 272, 310)):
        step(axes, name, 18, 222, top, bottom)
    for name, top, bottom in (("report", 90, 190), ("train", 210, 310)):
        step(axes, name, 720, 164, top, bottom)
    asked, offer = offers()
    for y, name, offered in ((109, "report", asked), (229, "train", offer)):
        arrow(axes, (240, y), (720, y))
        asks(axes, 332, y - 17, name, offered)
        tag(axes, 656, y, CHECK, GREEN)
    for y, declared in ((171, FedSoft.reports), (291, FedSoft.sends)):
        arrow(axes, (720, y), (240, y))
        message(axes, 452, y - 25, declared)
        tag(axes, 656, y, PROTECT, PURPLE)
        tag(axes, 280, y, CHECKED, GREEN)


def graph(axes: Axes, y: float) -> None:
    more = "every client is a peer: it is its own aggregator, and sends to its neighbours"
    title(axes, y, "Over a graph", more)
    peer(axes, y)
    neighbours(axes, y)
    heading(axes, 520, y + 32, "the seam")
    code(axes, 520, y + 56, ASK)
    arrow(axes, (490, y + 80), (386, y + 80))
    arrow(axes, (550, y + 80), (654, y + 80))
    asks(axes, 491, y + 80, "train", [])
    write(axes, 520, y + 101, "the coordinator asks and offers nothing:", color=GREY, ha="center")
    write(axes, 520, y + 116, "peers hold their own centers", color=GREY, ha="center")
    code(axes, 520, y + 158, DELIVER)
    out, back = y + 214, y + 272
    arrow(axes, (290, out), (790, out))
    arrow(axes, (790, back), (184, back))
    for line, protected, came_in in ((out, 290, 726), (back, 726, 290)):
        message(axes, 520, line - 25, FedSoft.sends)
        tag(axes, protected, line, PROTECT, PURPLE)
        tag(axes, came_in, line, CHECKED, GREEN)


def peer(axes: Axes, y: float) -> None:
    """Both halves of the algorithm; between them nothing is sent."""
    box(axes, 8, y + 16, 378, 288, PLAIN)
    box(axes, 16, y + 44, 176, 252, BLUE)
    box(axes, 202, y + 44, 176, 192, ORANGE)
    heading(axes, 197, y + 32, "a peer")
    heading(axes, 104, y + 58, "its aggregator's half", BLUE)
    heading(axes, 290, y + 58, "its client's half", ORANGE)
    for name, top, bottom in (("ask", 72, 100), ("plan", 108, 168), ("combine", 200, 286)):
        step(axes, name, 24, 160, y + top, y + bottom, brief=True)
    for name, top, bottom in (("report", 72, 134), ("train", 142, 186)):
        step(axes, name, 210, 160, y + top, y + bottom, brief=True)
    for down, start, end in ((86, 184, 210), (121, 210, 184), (155, 184, 210), (214, 290, 184)):
        arrow(axes, (start, y + down), (end, y + down))
    arrow(axes, (290, y + 186), (290, y + 205))


def neighbours(axes: Axes, y: float) -> None:
    """Only what goes to them and comes from them."""
    several(axes, 662, y + 16, 230, 288, PLAIN)
    heading(axes, 777, y + 32, "its neighbours")
    write(axes, 777, y + 110, "do the same", color=GREY, ha="center")
    write(axes, 777, y + 125, "at the same time", color=GREY, ha="center")
    step(axes, "combine", 790, 94, y + 200, y + 228, brief=True)
    step(axes, "train", 790, 94, y + 258, y + 286, brief=True)


def legend(axes: Axes, y: float) -> None:
    asks(axes, 41, y, "train", [])
    message(axes, 70, y + 30, {"row": FedSoft.sends["row"]})
    tag(axes, 70, y + 60, PROTECT, PURPLE)
    tag(axes, 70, y + 84, CHECK, GREEN)
    tag(axes, 70, y + 108, CHECKED, GREEN)
    others = ", ".join(name for name in get_args(Question) if name not in ("report", "train"))
    for down, text in {
        0: "a question has a name; the fields beside it are offered with it",
        30: "a field of a message, with the role that the algorithm declares; echoed: sent back as it was offered",
        60: "at the client, if the stage has privacy: by its role, a field is noised, withheld or left as it is",
        84: "where bytes come in: are they of this run, client, question and round?",
        108: "the same, and are the fields as declared? A bad message is left out, and the round goes on",
        136: f"Other questions go the same way: {others}.",
    }.items():
        for i, line in enumerate(wrapped(text, WIDTH - 150 - MARGIN)):
            write(axes, 150, y + down + 15 * i, line)


# its pieces


def title(axes: Axes, y: float, text: str, more: str) -> None:
    write(axes, MARGIN, y, text, 15, **BOLD)
    write(axes, MARGIN + width_of(text, 15, **BOLD) + 14, y + 1, more, 12, GREY)


def heading(axes: Axes, x: float, y: float, text: str, colors: Colors = PLAIN) -> None:
    write(axes, x, y, text, 12, GREY if colors == PLAIN else colors[1], ha="center", **BOLD)


def code(axes: Axes, x: float, y: float, text: str, color: str = INK, size: float = 10.5) -> None:
    write(axes, x, y, text, size, color, ha="center", **CODE)


def several(axes: Axes, x: float, y: float, width: float, height: float, colors: Colors) -> None:
    """One, and others like it behind."""
    for behind in (8, 4, 0):
        box(axes, x - behind, y + behind, width, height - 2 * behind, colors)


def step(
    axes: Axes, name: str, x: float, width: float, top: float, bottom: float, brief: bool = False
) -> None:
    """A method of the algorithm; unless brief, with what it is given and what it does."""
    (whose, what), signature = steps()[name], call(getattr(Algorithm, name))
    box(axes, x, top, width, bottom - top, ("#ffffff", (BLUE if whose == "aggregator" else ORANGE)[1]))
    lines = [] if brief else wrapped(what, width - 8)
    y = (top + bottom) / 2 - 7.5 * len(lines)
    code(axes, x + width / 2, y, name if brief else signature, size=12)
    for i, line in enumerate(lines):
        write(axes, x + width / 2, y + 16 + 14 * i, line, color=GREY, ha="center")


def tag(axes: Axes, x: float, y: float, text: str, colors: Colors) -> None:
    """What happens to a message on its way."""
    width = width_of(text, 10.5, **CODE) + 14
    box(axes, x - width / 2, y - 9, width, 18, colors, 9)
    code(axes, x, y, text, colors[1])


def asks(axes: Axes, x: float, y: float, name: str, offered: list[str]) -> None:
    """A question by its name, dark, and the fields that are offered with it."""
    dark = ("#46525e", "#46525e")
    for text, colors, ink in [(question(name), dark, "white"), *((field, PLAIN, INK) for field in offered)]:
        width = width_of(text, 10.5, **CODE) + 12
        box(axes, x, y - 9, width, 18, colors, 3)
        code(axes, x + width / 2, y, text, ink)
        x += width + 6


def message(axes: Axes, x: float, y: float, declared: Declared) -> None:
    """The fields around x, each with its role."""
    fields = [(name, field.role + (", echoed" if field.echo else "")) for name, field in declared.items()]
    widths = [max(width_of(name, 10.5, **CODE), width_of(role, 10)) + 12 for name, role in fields]
    x -= (sum(widths) + 6 * (len(widths) - 1)) / 2
    for (name, role), width in zip(fields, widths, strict=True):
        box(axes, x, y - 16, width, 32, PLAIN, 3)
        code(axes, x + width / 2, y - 7, name)
        write(axes, x + width / 2, y + 7, role, 10, GREY, ha="center")
        x += width + 6
