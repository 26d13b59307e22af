"""Writes docs/algorithms.md from the algorithms themselves: `python docs/build.py`."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from pathlib import Path

from coterie import ALGORITHMS, Algorithm

HEAD = """# The algorithms

Made from the code by `python docs/build.py`; `coterie algorithms NAME` prints the same.

Every algorithm in the list passes the contract tests (`tests/test_contracts.py`), at a server and, unless it
needs a server, over a graph: same seed, same bits; chunk size; order of clients; clients apart, everything as
bytes; resume; absent clients, down to none; one cluster; a client with one point.
"""


def section(kind: type[Algorithm]) -> str:
    lines = [f"## {kind.title()}", "", inspect.getdoc(kind) or "", ""]
    lines += [f"Runs at a server{'' if kind.needs_server else ' and over a graph'}.", ""]
    if fields(kind):
        lines += ["| setting | type | default |", "|---|---|---|"]
        for f in fields(kind):
            default = "required" if f.default is MISSING else f"`{f.default!r}`"
            lines.append(f"| `{f.name}` | `{f.type}` | {default} |".replace(" | None", " or None"))
        lines.append("")
    exempt = [f"- {contract}: {reason}" for contract, reason in kind.exempt.items()]
    lines += ["Contracts that cannot apply: " + ("none." if not exempt else ""), *exempt, ""]
    if kind.bibtex:
        lines += ["```bibtex", kind.bibtex, "```", ""]
    return "\n".join(lines)


def page() -> str:
    return HEAD + "\n" + "\n".join(section(kind) for kind in ALGORITHMS.values())


if __name__ == "__main__":
    Path(__file__).with_name("algorithms.md").write_text(page())
