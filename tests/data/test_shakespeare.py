"""Text: characters as numbers, roles as clients, speeches out of a play."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.data import load
from coterie.data.sources.shakespeare import speeches
from coterie.data.sources.text import CHARACTERS, by_role, tokens
from coterie.errors import CoterieError
from tests.builders import PLAY, write


def test_characters():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    assert tokens("A b\n").tolist() == [CHARACTERS.index(c) for c in "A b\n"]
    assert tokens("é$").tolist() == [CHARACTERS.index(" ")] * 2


def test_roles_are_cut_into_sequences_and_parted_in_time():
    source = by_role({"long": "abcdefghijklmnopqrstuvwxy", "short": "abcdefg", "two": "ABCDEFGHI"}, length=4)
    assert source.owners == ("long", "two")
    words = ["".join(CHARACTERS[i] for i in row) for row in source.x_train]
    assert words == ["abcd", "efgh", "ijkl", "mnop", "qrst", "ABCD"]  # 6 of "long", a fifth of which is 1.2
    assert ["".join(CHARACTERS[i] for i in row) for row in source.y_train][-2:] == ["rstu", "BCDE"]
    assert ["".join(CHARACTERS[i] for i in row) for row in source.x_test] == ["uvwx", "EFGH"]
    assert source.owner_train.tolist() == [0] * 5 + [1]
    assert source.owner_test.tolist() == [0, 1]


@pytest.mark.parametrize("end", ["", ".gz"])
def test_file_of_speeches(tmp_path: Path, end: str):
    lines = [
        {"play": "lear", "role": r, "text": t * 30}
        for r, t in (("LEAR", "Howl! "), ("FOOL", "Nuncle "), ("LEAR", "No. "))
    ]
    path = tmp_path / f"shakespeare_roles.jsonl{end}"
    write(path, "\n".join(map(json.dumps, lines)).encode())
    source = load("shakespeare", tmp_path)
    assert source.owners == ("lear/LEAR", "lear/FOOL")
    said = "Howl! " * 30 + "\n" + "No. " * 30
    assert source.x_train[source.owner_train == 0].flatten().tolist() == tokens(said)[:160].tolist()
    write(path, b'{"play": "lear"}\n')
    with pytest.raises(
        CoterieError, match="line 1: this is no speech; needed is an object with play, role and text"
    ):
        load("shakespeare", tmp_path)
    if end:
        write(path, "\n".join(map(json.dumps, lines)).encode())
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(CoterieError, match="is not a whole file of speeches"):
            load("shakespeare", tmp_path)


def test_speeches_of_a_play():
    assert speeches(PLAY) == [
        ("ANNE", "Good morrow.  How now?"),
        ("BOB", "Well.\nAnd yet not well."),
        ("ANNE", "What news?"),
        ("BOB", "None."),
    ]
