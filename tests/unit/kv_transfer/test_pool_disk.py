"""The tier below the arena: what comes back is what was written, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kv_transfer.pool_disk import DIGEST_BYTES, MAX_PENDING, DiskTier

BLOCK_BYTES = 64
FILE_BYTES = BLOCK_BYTES + DIGEST_BYTES
WAIT_S = 5.0
DiskFactory = Callable[..., DiskTier]


def key(n: int) -> bytes:
    return bytes([n]) * 16


def payload(n: int) -> bytes:
    return bytes([n]) * BLOCK_BYTES


@pytest.fixture
def new_disk(tmp_path: Path) -> Iterator[DiskFactory]:
    disks: list[DiskTier] = []

    def make(max_files: int = 8) -> DiskTier:
        disks.append(DiskTier(tmp_path / "pool-0", max_files * FILE_BYTES, BLOCK_BYTES))
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()


def write(disk: DiskTier, *numbers: int) -> None:
    for n in numbers:
        assert disk.write(key(n), payload(n)).result(WAIT_S)


def read(disk: DiskTier, n: int) -> bytes | None:
    return disk.read(key(n)).result(WAIT_S)


def file_of(disk: DiskTier, tmp_path: Path, n: int) -> Path:
    return tmp_path / "pool-0" / f"{key(n).hex()}.kv"


def test_a_block_comes_back_as_it_was_written(new_disk: DiskFactory) -> None:
    disk = new_disk()
    write(disk, 1, 2)
    assert (read(disk, 1), read(disk, 2), read(disk, 3)) == (payload(1), payload(2), None)
    assert [disk.has(key(1)), disk.has(key(3))] == [True, False]
    assert disk.num_bytes == 2 * FILE_BYTES


def test_the_least_recently_used_file_goes_when_the_budget_is_used_up(new_disk: DiskFactory, tmp_path: Path) -> None:
    disk = new_disk(max_files=2)
    write(disk, 1, 2)
    read(disk, 1)
    write(disk, 3)
    assert [disk.has(key(n)) for n in (1, 2, 3)] == [True, False, True]
    assert not file_of(disk, tmp_path, 2).exists()


def test_a_budget_below_one_block_keeps_nothing(new_disk: DiskFactory) -> None:
    disk = new_disk(max_files=0)
    assert not disk.write(key(1), payload(1)).result(WAIT_S)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes()[:-1] + b"x"),
        lambda file: file.write_bytes(file.read_bytes() + b"x"),
        lambda file: file.write_bytes(b""),
    ],
    ids=["missing", "cut", "changed", "longer", "empty"],
)
def test_a_damaged_file_is_a_miss_and_goes(
    damage: Callable[[Path], object], new_disk: DiskFactory, tmp_path: Path
) -> None:
    disk = new_disk()
    write(disk, 1, 2)
    damage(file_of(disk, tmp_path, 1))
    assert read(disk, 1) is None
    assert not disk.has(key(1))
    assert read(disk, 2) == payload(2)


def test_a_file_of_another_key_is_a_miss(new_disk: DiskFactory, tmp_path: Path) -> None:
    disk = new_disk()
    write(disk, 1, 2)
    file_of(disk, tmp_path, 1).write_bytes(file_of(disk, tmp_path, 2).read_bytes())
    assert read(disk, 1) is None


def test_a_disk_that_fails_keeps_nothing_and_goes_on(new_disk: DiskFactory, tmp_path: Path) -> None:
    disk = new_disk()
    file_of(disk, tmp_path, 1).with_suffix(".part").mkdir()
    assert not disk.write(key(1), payload(1)).result(WAIT_S)
    assert disk.num_errors == 1
    write(disk, 2)


def test_a_new_start_finds_nothing_of_the_last(new_disk: DiskFactory) -> None:
    write(new_disk(), 1)
    again = new_disk()
    assert again.num_bytes == 0
    assert read(again, 1) is None


def test_a_disk_that_is_too_far_behind_is_asked_no_more(new_disk: DiskFactory, tmp_path: Path) -> None:
    disk = new_disk(max_files=2 * MAX_PENDING)
    slow = file_of(disk, tmp_path, 0).with_suffix(".part")
    os.mkfifo(slow)  # a write that takes until somebody reads
    pending = [disk.write(key(n), payload(n)) for n in range(MAX_PENDING)]
    assert disk.is_behind
    assert disk.write(key(99), payload(99)).result(0) is False
    assert disk.read(key(0)).result(0) is None
    assert len(slow.read_bytes()) == FILE_BYTES
    assert all(write.result(WAIT_S) for write in pending)


def test_after_its_end_everything_is_a_miss(new_disk: DiskFactory, tmp_path: Path) -> None:
    disk = new_disk()
    write(disk, 1)
    disk.close()
    assert read(disk, 1) is None
    assert not (tmp_path / "pool-0").exists()
