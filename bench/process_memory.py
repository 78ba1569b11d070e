"""The kernel's own copy from another process's memory, process_vm_readv(2), which NIXL has where no pages are shared.

Allowed where ptrace(2) is: for processes of the same user, unless the system says otherwise.
"""

from __future__ import annotations

import ctypes
import os


class Extent(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


def read_memory(pid: int, address: int, destination: int, num_bytes: int) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    here, there = Extent(destination, num_bytes), Extent(address, num_bytes)
    num_read = libc.process_vm_readv(
        ctypes.c_int(pid),
        ctypes.byref(here),
        ctypes.c_ulong(1),
        ctypes.byref(there),
        ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )
    if num_read != num_bytes:
        error = ctypes.get_errno()
        raise OSError(error, f"{num_read} of {num_bytes} bytes read: {os.strerror(error)}")
