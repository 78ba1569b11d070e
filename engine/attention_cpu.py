"""The native CPU attention: `attention_cpu.c` behind the `Attention` signature, for float32 caches.

Shapes that the kernel does not take, and machines without a C compiler, get `torch_attention`: one log line says so.
"""

from __future__ import annotations

import ctypes
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from engine.attention import Attention, AttentionMetadata, torch_attention
from engine.kv_cache import KVLayout
from engine.native_library import NativeLibraryError, load_native_library

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".c")
LANES, MAX_HEAD_DIM, MAX_GROUP = 16, 256, 128  # as in the source


class _Batch(ctypes.Structure):
    """`batch_t` of the source, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "cache", "output")),
        *((name, ctypes.c_void_p) for name in ("block_tables", "sequence_lengths", "query_starts")),
        *((name, ctypes.c_int64) for name in ("block_stride", "value_offset")),
        *((name, ctypes.c_int32) for name in ("table_width", "num_sequences", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int32) for name in ("head_dim", "block_size")),
        ("scale", ctypes.c_float),
    )


class CpuAttention:
    """Maintains the loaded kernel and the threads that share its work."""

    def __init__(self, library: ctypes.CDLL, num_threads: int = 1) -> None:
        self._kernel = library.paged_attention
        self._kernel.argtypes = [ctypes.POINTER(_Batch), ctypes.c_int, ctypes.c_int]
        self._kernel.restype = None
        self._threads = [*range(num_threads)]
        self._executor = ThreadPoolExecutor(num_threads, "attention") if num_threads > 1 else None

    def __call__(self, query: Tensor, cache: Tensor, layer: int, metadata: AttentionMetadata) -> Tensor:
        query = query.contiguous()
        output = torch.empty_like(query)
        tables = metadata.block_tables
        batch = _Batch(
            query=query.data_ptr(),
            cache=cache.data_ptr() + layer * cache.stride(1) * cache.itemsize,
            output=output.data_ptr(),
            block_tables=tables.data_ptr(),
            sequence_lengths=metadata.sequence_lengths.buffer_info()[0],
            query_starts=metadata.query_starts.buffer_info()[0],
            block_stride=cache.stride(0),
            value_offset=cache.stride(2),
            table_width=tables.shape[1],
            num_sequences=tables.shape[0],
            num_heads=query.shape[1],
            num_kv_heads=cache.shape[3],
            head_dim=cache.shape[5],
            block_size=cache.shape[4],
            scale=query.shape[2] ** -0.5,
        )
        if self._executor is None:
            self._kernel(batch, 0, 1)
        else:
            count = len(self._threads)
            list(self._executor.map(lambda thread: self._kernel(batch, thread, count), self._threads))
        return output


def choose_attention(layout: KVLayout, num_heads: int, device: str, num_threads: int, cache_dir: Path) -> Attention:
    """The fastest attention that takes such a cache on this device; `cache_dir` keeps the compiled kernel."""
    group = num_heads // layout.num_kv_heads
    if device != "cpu" or layout.dtype != "float32":
        return torch_attention
    if layout.head_dim % LANES or layout.head_dim > MAX_HEAD_DIM or group > MAX_GROUP:
        logger.info(
            "the native attention takes no heads of %d in groups of %d: torch's is used", layout.head_dim, group
        )
        return torch_attention
    try:
        return CpuAttention(load_native_library(SOURCE, cache_dir), num_threads)
    except NativeLibraryError as error:
        logger.warning("the native attention is not available, torch's slower one is used: %s", error)
        return torch_attention
