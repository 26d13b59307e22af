"""Free memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKS = """
import ctypes, torch
from coterie.cli.malloc import give_back
class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd usm fsm uord ford keep".split()]
ask = ctypes.CDLL(None).mallinfo2
ask.restype = Info
def mapped(mib):
    before = ask().hblks
    held = torch.empty(mib * 2**20, dtype=torch.uint8)
    return ask().hblks - before
def grown():
    for _ in range(3):
        torch.empty(31 * 2**20, dtype=torch.uint8)  # glibc raises its threshold when such a block is freed
if asked:
    give_back()
grown()
print(mapped(12), mapped(4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc's malloc that is asked")
def test_large_blocks_are_given_back() -> None:
    """Without it a block of 12 MiB comes from the heap, once larger ones were freed; with it from the system."""
    for asked, expected in ((False, ["0", "0"]), (True, ["1", "0"])):
        program = f"asked = {asked}\n{BLOCKS}"
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert said.stdout.split() == expected
