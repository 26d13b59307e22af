"""Just enough of PNG to read pictures of 8-bit RGB, as CIFAR-10's package has them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from coterie.data.own.arrays import Array
from coterie.errors import CoterieError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB8 = (8, 2, 0, 0, 0)  # bits, colour type, compression, filter, interlace


def read_png(data: bytes, where: str) -> Array:
    """(height, width, 3) bytes."""
    header, packed = b"", []
    for kind, content in _chunks(data, where):
        header = content if kind == b"IHDR" else header
        packed += [content] if kind == b"IDAT" else []
    width, height, *form = struct.unpack(">IIBBBBB", header) if len(header) == 13 else (0, 0)
    if tuple(form) != _RGB8:
        raise CoterieError(f"{where} is no PNG of 8-bit RGB without interlacing")
    try:
        flat = np.frombuffer(zlib.decompress(b"".join(packed)), np.uint8)
    except zlib.error as problem:
        raise CoterieError(f"{where} is damaged: its pixels cannot be unpacked ({problem})") from problem
    if flat.size != height * (1 + 3 * width):
        raise CoterieError(
            f"{where} holds {flat.size} bytes of pixels; {height * (1 + 3 * width)} are expected"
        )
    lines = flat.reshape(height, 1 + 3 * width)
    return _unfiltered(lines[:, 0], lines[:, 1:].reshape(height, width, 3))


def _chunks(data: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(_SIGNATURE):
        raise CoterieError(f"{where} is no PNG: it begins with {data[:8].hex()}")
    at = len(_SIGNATURE)
    while at + 12 <= len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + size]
        check = data[at + 8 + size : at + 12 + size]
        if check != struct.pack(">I", zlib.crc32(kind + content)):
            raise CoterieError(f"{where} is damaged or cut short at byte {at}: a checksum differs")
        yield kind, content
        at += 12 + size


def _unfiltered(kinds: Array, lines: Array) -> Array:
    """Each line was stored as differences, of one of five kinds."""
    out = lines.copy()
    for row in np.flatnonzero(kinds != 0):
        above = out[row - 1] if row else np.zeros_like(out[0])
        if kinds[row] == 1:  # from the pixel to the left
            out[row] = np.cumsum(lines[row], axis=0, dtype=np.uint8)
        elif kinds[row] == 2:  # from the pixel above
            out[row] = lines[row] + above
        else:  # from the mean of both, or from the nearest of three (Paeth)
            _one_by_one(out[row], above, paeth=bool(kinds[row] == 4))
    return out


def _one_by_one(line: Array, above: Array, paeth: bool) -> None:
    for channel in range(3):
        left = corner = 0
        for at in range(len(line)):
            over = int(above[at, channel])
            guess = _nearest(left, over, corner) if paeth else (left + over) // 2
            left, corner = (int(line[at, channel]) + guess) % 256, over
            line[at, channel] = left


def _nearest(left: int, over: int, corner: int) -> int:
    target = left + over - corner
    return min(
        (left, over, corner), key=lambda value: abs(target - value)
    )  # the first of equals, as PNG has it
