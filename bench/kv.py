"""How fast each transport moves KV between two processes, beside plain memcpy of as many bytes in the same run.

Repeats are interleaved, one transport after the other and memcpy among them, so that whatever else the machine does
slows all of them alike.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.kv_worker import KVWorkers, PooledRead, PrefillTimes, Received
from bench.remote import Remote
from engine.config import EngineConfig
from engine.fake_runner import MODEL_TYPE, FakeModel
from engine.scheduling import SchedulingConfig
from kv_transfer.config import TransferConfig

KIB = 1024
MIB = 1024 * KIB
BLOCK_SIZE = 16  # tokens
LAYER_BYTES = 8 * KIB  # of one KV head of 64 float32 in one block
BLOCK_BYTES = (64 * KIB, 256 * KIB, 512 * KIB, 1 * MIB)
BYTES_OF_MANY = 64 * MIB  # read at a time, whatever the block size
PROMPTS = (256, 1024, 2048, 4096)  # tokens
REPEATS = 7
LATENCIES = 30
IDLE_S = 10.0
DEFAULT_SHAPE = FakeModel(num_layers=30, num_kv_heads=3, head_dim=64, max_model_len=8192)  # of the default model
POOLED = "pooled, nixl"
MEMCPY = "memcpy"
KERNEL = "process_vm_readv"  # what NIXL has over shared memory, as no pages are shared
# name: (the transport, its configuration)
PATHS: Mapping[str, tuple[str, TransferConfig]] = {
    "nixl, shared memory": ("nixl", TransferConfig()),
    "nixl, tcp": ("nixl", TransferConfig(ucx_tls="tcp", ucx_net_devices="lo")),
    "gloo": ("gloo", TransferConfig(transports=("gloo",))),
    "local": ("local", TransferConfig()),
}
Say = Callable[[str], None]


@dataclass(slots=True)
class Series:
    """Repeats of one amount of KV over one path, in seconds; of memcpy and the kernel's copy only `read_s`."""

    num_bytes: int
    read_s: list[float] = field(default_factory=list)  # into staging
    total_s: list[float] = field(default_factory=list)  # and from there into the cache
    latency_s: list[float] = field(default_factory=list)  # of one block into staging


@dataclass(frozen=True, slots=True)
class HandoffRun:
    """One prompt of the real model, from a prefill worker to a decode worker."""

    chunk_tokens: int
    layer_ranges: int
    prefill: PrefillTimes
    received: Received

    @property
    def prefill_s(self) -> float:
        return self.prefill.ended_at - self.prefill.started_at

    @property
    def exposed_s(self) -> float:
        """From the end of prefill to Valid."""
        return self.received.valid_at - self.prefill.ended_at


@dataclass(frozen=True, slots=True)
class KVReport:
    blocks: Mapping[int, Mapping[str, Series]]  # by bytes of a block, then by path
    prompts: Mapping[int, Mapping[str, Series]]  # by tokens
    handoffs: Sequence[HandoffRun]
    idle_cpu_s: tuple[float, float]  # of two connected workers, in IDLE_S
    num_cores: int
    loads: tuple[float, float]  # the machine's, over a minute, before and after


def measure(model: Path, num_tokens: int, repeats: int, say: Say) -> KVReport:
    """`model`: the folder of a real one, whose prompts of `num_tokens` are handed off."""
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        source, reader = (stack.enter_context(Remote(KVWorkers)) for _ in range(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rig = Rig(source, reader, folder)
        blocks = {}
        for block_bytes in BLOCK_BYTES:
            say(f"blocks of {block_bytes // KIB} KiB")
            shape = FakeModel(num_layers=block_bytes // LAYER_BYTES, num_kv_heads=1, head_dim=64)
            blocks[block_bytes] = rig.measure(shape, [BYTES_OF_MANY // block_bytes], repeats)[
                BYTES_OF_MANY // block_bytes
            ]
        say("prompts of the default model's layout")
        by_blocks = rig.measure(DEFAULT_SHAPE, [n // BLOCK_SIZE for n in PROMPTS], repeats)
        pooled = rig.measure_pooled(DEFAULT_SHAPE, [n // BLOCK_SIZE for n in PROMPTS], repeats)
        handoffs = rig.hand_off(model, num_tokens, say)
        say(f"two idle workers for {IDLE_S:g} s")
        idle = rig.idle_cpu_s(model)
    return KVReport(
        blocks=blocks,
        prompts={n: _with_pooled(by_blocks[n // BLOCK_SIZE], pooled[n // BLOCK_SIZE]) for n in PROMPTS},
        handoffs=handoffs,
        idle_cpu_s=idle,
        num_cores=os.cpu_count() or 1,
        loads=(load, os.getloadavg()[0]),
    )


@dataclass(frozen=True, slots=True)
class Rig:
    """Two processes with the same workers in both: one side is read from, the other reads."""

    source: Remote
    reader: Remote
    folder: Path  # for the models that are none

    def measure(self, shape: FakeModel, counts: Sequence[int], repeats: int) -> dict[int, dict[str, Series]]:
        """By number of blocks, then by path."""
        engine = EngineConfig(block_size=BLOCK_SIZE, num_blocks=max(counts))
        model = write_shape(self.folder / "shape", shape)
        for path, (transport, config) in PATHS.items():
            self._connect(path, model, engine, config, transport)
        block_bytes = shape.layout(BLOCK_SIZE).block_bytes
        found = {n: {path: Series(n * block_bytes) for path in (*PATHS, KERNEL, MEMCPY)} for n in counts}
        for n in counts:
            for path in PATHS:
                self._pull(path, n, True)  # warm
            for _ in range(repeats):
                self._repeat(found[n], n)
            for path in PATHS:
                found[n][path].latency_s += [self._pull(path, 1, False) for _ in range(LATENCIES)]
        self._drop(*PATHS)
        return found

    def measure_pooled(self, shape: FakeModel, counts: Sequence[int], repeats: int) -> dict[int, Series]:
        """Prompts of so many blocks from a pool node, by number of blocks."""
        engine = EngineConfig(block_size=BLOCK_SIZE, num_blocks=2 * max(counts))
        model, config = write_shape(self.folder / "shape", shape), TransferConfig()
        self.source.call("add_pool", POOLED, "pool", model, engine, config)
        self.reader.call("add", POOLED, "D, pooled", model, engine, config)
        found = {n: Series(n * shape.layout(BLOCK_SIZE).block_bytes) for n in counts}
        for n, series in found.items():
            self._read_pooled(n)  # warm, and filled
            reads = [self._read_pooled(n) for _ in range(repeats)]
            series.read_s += [read.transfer_s for read in reads]
            series.total_s += [read.total_s for read in reads]
            series.latency_s += [self._read_pooled(1).total_s for _ in range(LATENCIES)]
        self._drop(POOLED)
        return found

    def _read_pooled(self, num_blocks: int) -> PooledRead:
        member = self.source.call("on", POOLED, "member")
        read = self.reader.call("on", POOLED, "read_pooled", member, num_blocks)
        if isinstance(read, PooledRead):
            return read
        self.source.call("on", POOLED, "fill", read)
        read = self.reader.call("on", POOLED, "read_pooled", member, num_blocks)
        assert isinstance(read, PooledRead)
        return read

    def hand_off(self, model: Path, num_tokens: int, say: Say) -> list[HandoffRun]:
        """In chunks and in one piece, with and without layer ranges."""
        runs = []
        for chunk in (256, num_tokens):
            for layer_ranges in (1, 4):
                say(f"{num_tokens} tokens in chunks of {chunk}, {layer_ranges} layer ranges")
                config = TransferConfig(layer_ranges=layer_ranges)
                scheduling = SchedulingConfig(
                    max_num_batched_tokens=chunk, prefill_chunk_size=chunk, long_prefill_token_threshold=num_tokens
                )
                engine = EngineConfig(num_blocks=num_tokens // BLOCK_SIZE + 16, scheduling=scheduling)
                self._connect("real", model, engine, config, "nixl")
                self._hand_off_once(64)  # warm
                prefill, received = self._hand_off_once(num_tokens)
                runs.append(HandoffRun(chunk, layer_ranges, prefill, received))
                self._drop("real")
        return runs

    def idle_cpu_s(self, model: Path) -> tuple[float, float]:
        """Of both processes, in IDLE_S, after a hand-off between them."""
        self._connect("real", model, EngineConfig(num_blocks=64), TransferConfig(), "nixl")
        self._hand_off_once(64)
        sides = (self.source, self.reader)
        before = [side.call("cpu_s") for side in sides]
        time.sleep(IDLE_S)
        source, reader = (side.call("cpu_s") - used for side, used in zip(sides, before, strict=True))
        self._drop("real")
        return source, reader

    def _connect(self, name: str, model: Path, engine: EngineConfig, config: TransferConfig, transport: str) -> None:
        for side, incarnation in ((self.source, f"P, {name}"), (self.reader, f"D, {name}")):
            side.call("add", name, incarnation, model, engine, config)
        peer = f"D, {name}" if transport == "local" else f"P, {name}"
        self.source.call("on", name, "keep_awake", True)
        self.reader.call("on", name, "connect", peer, self.source.call("on", name, "address"), transport)
        self.source.call("on", name, "keep_awake", False)

    def _drop(self, *names: str) -> None:
        for name in names:
            for side in (self.reader, self.source):
                side.call("drop", name)

    def _repeat(self, series: Mapping[str, Series], num_blocks: int) -> None:
        for path in PATHS:
            series[path].read_s.append(self._pull(path, num_blocks, False))
            series[path].total_s.append(self._pull(path, num_blocks, True))
            series[MEMCPY].read_s.append(self.reader.call("on", path, "copy", num_blocks))
        memory = self.source.call("on", path, "memory")
        series[KERNEL].read_s.append(self.reader.call("on", path, "read_memory", *memory, num_blocks))

    def _pull(self, path: str, num_blocks: int, copies: bool) -> float:
        """Seconds; the source takes part meanwhile, as it does while a lease is open."""
        self.source.call("on", path, "keep_awake", True)
        seconds: float = self.reader.call("on", path, "pull", num_blocks, copies)
        self.source.call("on", path, "keep_awake", False)
        return seconds

    def _hand_off_once(self, num_tokens: int) -> tuple[PrefillTimes, Received]:
        prompt = [random.randrange(1000, 20000) for _ in range(num_tokens)]
        session = os.urandom(16)
        self.reader.start("on", "real", "take_over", prompt, session)
        prefill: PrefillTimes = self.source.call("on", "real", "prefill", prompt, session)
        received: Received = self.reader.answer()
        return prefill, received


def _with_pooled(series: Mapping[str, Series], pooled: Series) -> dict[str, Series]:
    """Between the other paths and what they are compared with."""
    return {path: series[path] for path in PATHS} | {POOLED: pooled, KERNEL: series[KERNEL], MEMCPY: series[MEMCPY]}


def write_shape(folder: Path, shape: FakeModel) -> Path:
    """A model folder with KV of this shape, which computes nothing real."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPE, "fake": asdict(shape)}))
    return folder
