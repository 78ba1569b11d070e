"""The tier below a pool node's arena: a folder of evicted blocks, one file each, within a budget of bytes.

All file work is done by one thread; a file that is missing, cut or changed is a miss, and so is a disk that fails.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)

DIGEST_BYTES = 32
MAX_PENDING = 32  # jobs for the thread; beyond them what is evicted is dropped, and what is asked for is a miss


class DiskTier:
    """Maintains: the files together stay within `max_bytes`, the least recently used going first.

    The folder is emptied at the start: what an earlier incarnation left is not this one's.
    """

    def __init__(self, folder: Path, max_bytes: int, block_bytes: int) -> None:
        """Raises OSError when the folder cannot be made, emptied and written to."""
        self._folder = folder
        self._block_bytes = block_bytes
        self._file_bytes = block_bytes + DIGEST_BYTES
        self._max_files = max_bytes // self._file_bytes
        self._files: OrderedDict[bytes, None] = OrderedDict()  # least recently used first; the thread changes it
        self._writing: set[bytes] = set()  # will be there before any later read
        self._places = threading.BoundedSemaphore(MAX_PENDING)
        self._closed = False
        self.num_errors = 0
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pool-disk")

    @property
    def num_bytes(self) -> int:
        return len(self._files) * self._file_bytes

    @property
    def is_behind(self) -> bool:
        """What is written now would be dropped."""
        return self._closed or len(self._writing) >= MAX_PENDING

    def has(self, key: bytes) -> bool:
        """Whether a read would probably find it."""
        return key in self._files or key in self._writing

    def write(self, key: bytes, payload: bytes) -> Future[bool]:
        """Whether a copy is kept now."""
        self._writing.add(key)
        writing = self._submit(lambda: self._write(key, payload), False)
        writing.add_done_callback(lambda _: self._writing.discard(key))
        return writing

    def read(self, key: bytes) -> Future[bytes | None]:
        """The block as it was written, or None."""
        return self._submit(lambda: self._read(key), None)

    def close(self) -> None:
        """What waits is given up. Returns when the thread has ended, and the files are gone."""
        self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _submit(self, job: Callable[[], T], otherwise: T) -> Future[T]:
        """`otherwise` when the disk is too far behind, or fails."""
        if self._closed or not self._places.acquire(blocking=False):
            skipped: Future[T] = Future()
            skipped.set_result(otherwise)
            return skipped
        running = self._thread.submit(self._survive, job, otherwise)
        running.add_done_callback(lambda _: self._places.release())
        return running

    def _survive(self, job: Callable[[], T], otherwise: T) -> T:
        try:
            return job()
        except OSError as error:
            self.num_errors += 1
            if self.num_errors == 1:
                logger.warning("the pool's disk tier in %s fails: %s", self._folder, error)
            return otherwise

    def _write(self, key: bytes, payload: bytes) -> bool:
        if key in self._files:
            self._files.move_to_end(key)
            return True
        if self._max_files == 0:
            return False
        while len(self._files) >= self._max_files:
            self._drop(next(iter(self._files)))
        path = self._path(key)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(_digest(key, payload) + payload)
        os.replace(unfinished, path)
        self._files[key] = None
        return True

    def _read(self, key: bytes) -> bytes | None:
        if key not in self._files:
            return None
        try:
            content = self._path(key).read_bytes()
        except OSError:
            self._drop(key)
            raise
        digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if len(payload) != self._block_bytes or digest != _digest(key, payload):
            logger.warning("the pool's file of %s is not what was written: dropped", key.hex())
            self._drop(key)
            return None
        self._files.move_to_end(key)
        return payload

    def _drop(self, key: bytes) -> None:
        self._files.pop(key, None)
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.kv"


def _digest(key: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES, key=key, person=b"pdserve-disk").digest()
