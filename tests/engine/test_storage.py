"""Tables of rows, in memory or on disk."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest
import torch

from coterie import CoterieError
from coterie.engine import storage
from tests.builders import CPU


def test_tables(little_memory: None) -> None:
    small = storage.table((3, 4), torch.float32, CPU)
    large = storage.table((100, 4), torch.float32, CPU)
    assert len(storage._mapped) == 1
    assert not large.any()
    large[:] = torch.arange(100.0)[:, None]
    small += 1
    storage.put_away()
    assert large[:, 2].tolist() == list(range(100))
    at = torch.tensor([99, 0, 50] * 20)
    assert torch.equal(storage.take(large, at)[:, 0], at.float())
    assert torch.equal(storage.mean(large), torch.full((4,), 49.5))
    parts = list(storage.row_blocks(large))
    assert len(parts) > 1
    assert [i for some in parts for i in range(some.start, some.stop)] == list(range(100))
    del large, at
    assert not storage._mapped


def test_no_room_on_disk_is_said(little_memory: None) -> None:
    with pytest.raises(CoterieError, match=r"has no room in .*; TMPDIR names another folder"):
        storage.table((2**40, 2**10), torch.float32, CPU)


def test_memory_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    storage.memory.cache_clear()
    monkeypatch.setenv("COTERIE_MEMORY", "much")
    with pytest.raises(CoterieError, match="COTERIE_MEMORY is 'much'; allowed is a number of GiB above 0"):
        storage.budget(CPU)
    storage.memory.cache_clear()


def test_a_process_has_its_share_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    storage.memory.cache_clear()
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=16 * 2**30)
    )
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 0.25)
    assert storage.budget(torch.device("cuda:0")) == 2**28
    storage.memory.cache_clear()


def test_a_gpu_keeps_between_rounds_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, row = torch.device("cuda"), torch.Size([1000])
    monkeypatch.setattr(storage, "memory", lambda _: 2**30)  # a table may have a sixteenth
    assert storage.home(row, 10_000, torch.float32, gpu) == gpu
    assert storage.home(row, 10_000, torch.float32, gpu, besides=2**26) == gpu
    assert storage.home(row, 10_000, torch.float32, gpu, besides=2**27) == CPU
    assert storage.home(row, 100_000, torch.float32, gpu) == CPU
    assert storage.home(torch.Size([]), 100_000, torch.float32, gpu) == gpu  # one number a client


def test_a_full_disk_is_said_before_anything_is_written_to_it(
    monkeypatch: pytest.MonkeyPatch, little_memory: None
) -> None:
    """Writing to a mapped file whose disk is full would end the process with SIGBUS."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CoterieError, match=r"a table of .* has no room in .*TMPDIR names another folder"):
        storage.table((1000, 10), torch.float32, torch.device("cpu"))
