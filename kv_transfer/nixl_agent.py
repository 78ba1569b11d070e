"""NIXL's agent with its UCX backend, behind the few typed calls that `NixlTransport` makes.

Used by one thread. Every error of NIXL becomes TransferFailed with NIXL's own name for it.
"""

from __future__ import annotations

import base64
import ctypes
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

import torch
from nixl_cu12 import _bindings
from nixl_cu12._api import nixl_agent, nixl_agent_config
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from torch import Tensor

from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.block_runs import runs_of
from kv_transfer.staging import pieces_in_row
from kv_transfer.transport import TransferFailed

K = TypeVar("K")
BACKEND = "UCX"
RUN_BYTES = 2 * 1024 * 1024  # longer runs of neighbouring blocks move no faster
MAX_PREPARED = 16  # descriptor lists kept for one peer, or for the staging memory
ERRORS: tuple[type[Exception], ...] = (
    _bindings.nixlBackendError,
    _bindings.nixlCancelledError,
    _bindings.nixlInvalidParamError,
    _bindings.nixlMismatchError,
    _bindings.nixlNotAllowedError,
    _bindings.nixlNotFoundError,
    _bindings.nixlNotPostedError,
    _bindings.nixlNotSupportedError,
    _bindings.nixlRemoteDisconnectError,
    _bindings.nixlRepostActiveError,
    _bindings.nixlUnknownError,
)


class ReadState(Enum):
    """In NIXL's own words."""

    RUNNING = "PROC"
    DONE = "DONE"
    FAILED = "ERR"


class Pieces(BaseModel):
    """Equal pieces of registered memory, `rows` times `per_row` of them: the blocks of a cache, or of staging slots."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: int = Field(ge=0)
    piece_bytes: int = Field(ge=1)
    rows: int = Field(ge=1)
    row_bytes: int = Field(ge=1)
    per_row: int = Field(ge=1)
    memory: Literal["DRAM", "VRAM"]
    device_id: int = Field(ge=0)

    @classmethod
    def of(cls, rows: Tensor, piece_bytes: int) -> Pieces:
        """`rows`: uint8 `[rows, row_bytes]`, each cut into as many whole pieces as fit and one read may have."""
        return cls(
            address=rows.data_ptr(),
            piece_bytes=piece_bytes,
            rows=rows.shape[0],
            row_bytes=rows.shape[1],
            per_row=pieces_in_row(rows.shape[1], piece_bytes),
            memory="VRAM" if rows.is_cuda else "DRAM",
            device_id=max(0, rows.get_device()),
        )

    @property
    def num_pieces(self) -> int:
        return self.rows * self.per_row

    def offset(self, piece: int) -> int:
        row, i = divmod(piece, self.per_row)
        return row * self.row_bytes + i * self.piece_bytes

    def descriptors(self, part: BlockPart = WHOLE) -> list[tuple[int, int, int]]:
        """(address, bytes, device) of that part of each, row by row."""
        wanted = part.within(self.piece_bytes)
        start = self.address + wanted.start
        return [(start + self.offset(piece), len(wanted), self.device_id) for piece in range(self.num_pieces)]

    def runs(self, num_sizes: int) -> list[tuple[int, int, int]]:
        """The same of all runs that `block_runs` knows. One that would leave the memory is cut short, for nobody."""
        end = self.address + self.rows * self.row_bytes
        return [
            (start, min(self.piece_bytes << size, end - start), self.device_id)
            for size in range(num_sizes)
            for start in (self.address + self.offset(piece) for piece in range(self.num_pieces))
        ]


class AgentMetadata(BaseModel):
    """What one side tells the other: how to reach its agent, and where its blocks are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: Base64Bytes
    blocks: Pieces


@dataclass(slots=True)
class Prepared(Generic[K]):
    """Maintains NIXL's handles of the last `MAX_PREPARED` descriptor lists that were asked for."""

    _handles: OrderedDict[K, Any] = field(default_factory=OrderedDict)

    def get(self, key: K, prepare: Callable[[], Any]) -> Any:
        if key not in self._handles:
            self._handles[key] = prepare()
            if len(self._handles) > MAX_PREPARED:
                self._handles.popitem(last=False)[1].release()  # a read made from it has its own copy
        self._handles.move_to_end(key)
        return self._handles[key]

    def release(self) -> None:
        while self._handles:
            self._handles.popitem()[1].release()


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """A peer's blocks, readable by number; each part of them is prepared once."""

    peer: str
    pieces: Pieces
    prepared: Prepared[BlockPart] = field(default_factory=Prepared)

    @property
    def num_blocks(self) -> int:
        return self.pieces.num_pieces


class NixlAgent:
    """Maintains its registrations for as long as it lives. No progress thread: who wants progress calls `progress`.

    `ucx`: UCX's settings, without their prefix UCX_. No value may have a comma: NIXL would cut it there.
    """

    def __init__(
        self, name: str, blocks: Tensor, staging: Tensor, piece_bytes: int, ucx: Mapping[str, str | None]
    ) -> None:
        logging.getLogger("nixl").setLevel(logging.WARNING)
        self._tensors = (blocks, staging)  # must outlive the agent
        if blocks.is_cuda:
            torch.cuda.set_device(blocks.device)
        with _errors("create the agent"):
            self._agent: Any = nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=[]))
            settings = ",".join(f"{name}={value}" for name, value in ucx.items() if value is not None)
            self._agent.create_backend(BACKEND, {"engine_config": settings})
            self._agent.register_memory(blocks)
            self._agent.register_memory(staging)
            self._staging = staging
            self._slots: Prepared[int] = Prepared()  # by the size of a piece
            self._prepare_slots(piece_bytes)
        self._blocks = Pieces.of(blocks, piece_bytes)

    def metadata(self) -> bytes:
        with _errors("describe the agent"):
            agent = self._agent.get_agent_metadata()
        return AgentMetadata(agent=base64.b64encode(agent), blocks=self._blocks).model_dump_json().encode()

    def add_peer(self, peer: str, metadata: bytes) -> RemoteBlocks:
        try:
            theirs = AgentMetadata.model_validate_json(metadata)
        except ValueError as error:
            raise TransferFailed(f"{peer} sent metadata that cannot be read: {error}") from error
        with _errors(f"connect to {peer}"):
            name = self._agent.add_remote_agent(theirs.agent)
            if name != peer.encode():
                self._agent.remove_remote_agent(name)
                raise TransferFailed(f"the metadata of {peer} is that of {name!r}")
            source = RemoteBlocks(peer, theirs.blocks)
            self._prepare_source(source, WHOLE)
        return source

    def remove_peer(self, blocks: RemoteBlocks) -> None:
        """None of its reads may be running."""
        with _errors(f"forget {blocks.peer}"):
            blocks.prepared.release()
            self._agent.remove_remote_agent(blocks.peer)

    def make_read(self, source: RemoteBlocks, blocks: Sequence[int], part: BlockPart, slot: int) -> Any:
        """A handle for `post`: that part of the peer's blocks into the staging slot of that number."""
        if not all(0 <= block < source.num_blocks for block in blocks):
            raise TransferFailed(f"{source.peer} has no blocks {[b for b in blocks if b >= source.num_blocks]}")
        try:
            piece_bytes = part.num_bytes(source.pieces.piece_bytes)
        except ValueError as error:
            raise TransferFailed(str(error)) from error
        per_slot = pieces_in_row(self._staging.shape[1], piece_bytes)
        if len(blocks) > per_slot:
            raise TransferFailed(f"{len(blocks)} blocks of {piece_bytes} bytes are too many for one slot")
        runs = list(runs_of(blocks, _num_sizes(piece_bytes) if part == WHOLE else 1))
        num_pieces = per_slot * len(self._staging)
        places = [run.size * num_pieces + slot * per_slot + run.place for run in runs]
        sources = [run.size * source.num_blocks + run.block for run in runs]
        with _errors(f"prepare a read from {source.peer}"):
            return self._agent.make_prepped_xfer(
                "READ", self._prepare_slots(piece_bytes), places, self._prepare_source(source, part), sources
            )

    def _prepare_source(self, source: RemoteBlocks, part: BlockPart) -> Any:
        pieces = source.pieces

        def prepare() -> Any:
            whole = part == WHOLE  # parts of neighbouring blocks are no neighbours
            descriptors = pieces.runs(_num_sizes(pieces.piece_bytes)) if whole else pieces.descriptors(part)
            return self._agent.prep_xfer_dlist(source.peer, descriptors, pieces.memory)

        return source.prepared.get(part, prepare)

    def _prepare_slots(self, piece_bytes: int) -> Any:
        def prepare() -> Any:
            pieces = Pieces.of(self._staging, piece_bytes)
            return self._agent.prep_xfer_dlist("", pieces.runs(_num_sizes(piece_bytes)), pieces.memory)

        return self._slots.get(piece_bytes, prepare)

    def post(self, read: Any) -> ReadState:
        """Over shared memory this call copies all of the bytes and blocks for that long."""
        with _errors("read"):
            return ReadState(self._agent.transfer(read))

    def state(self, read: Any) -> ReadState:
        with _errors("read"):
            return ReadState(self._agent.check_xfer_state(read))

    def release(self, read: Any) -> None:
        """Of a read that is over."""
        with _errors("release a read"):
            read.release()

    def progress(self) -> None:
        """Serves peers that read from here. Without it their reads never end."""
        with _errors("make progress"):
            self._agent.get_new_notifs()

    def leak(self) -> None:
        """Keeps the agent until the process ends: ending it under a running read can kill the peer's process."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._agent))
        for tensor in self._tensors:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))


def _num_sizes(piece_bytes: int) -> int:
    """Of runs of such pieces."""
    return max(1, (RUN_BYTES // piece_bytes).bit_length())


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise TransferFailed(f"could not {what}: {error}") from error
