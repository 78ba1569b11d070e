"""A proxy over scripted workers, all in one event loop; and a tokenizer whose token ids are the bytes of the text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from proxy.access.caller import Caller
from proxy.access.key_store import KeyStore
from proxy.admission.slo import NO_SLO, Slo
from proxy.config import ProxyConfig
from proxy.core import Core
from proxy.model import ServedModel
from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.body import parse
from proxy.request import sampling as samplings
from proxy.request.event_buffer import FinishedEvent
from proxy.request.generation_request import NOBODY, GenerationRequest, new_request_id
from proxy.request.kv_mode import KvMode
from proxy.request.lifecycle import Lifecycle
from proxy.request.priority import NORMAL, Priority
from proxy.request.sampling import Sampling
from proxy.server import Addresses, ProxyServer
from proxy.text import prompt as prompts
from proxy.text.prompt import Prompt, TextPrompt
from proxy.workers.worker_link import LinkTimes
from rpc import control_pb2, worker_pb2
from security.server_certificate import server_credentials
from telemetry.tracer import Tracer
from tests.unit.proxy.fake_worker import PATIENCE_S, FakeController, FakeWorker

EOS = 256
MAX_MODEL_LEN = 512
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_byte_model(folder: Path) -> Path:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab, "<|end|>": EOS}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "config.json": {"max_position_embeddings": MAX_MODEL_LEN, "vocab_size": 257},
        "tokenizer_config.json": {"chat_template": CHAT_TEMPLATE, "eos_token": "<|end|>"},
        "generation_config.json": {"eos_token_id": EOS},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(model_folder: Path) -> ServedModel:
    return ServedModel.load(model_folder, "bytes")


class Cluster:
    """A running proxy, its controller and its workers."""

    def __init__(self, model: ServedModel, config: ProxyConfig, times: LinkTimes, tracer: Tracer | None = None) -> None:
        self.controller = FakeController()
        self.workers: list[FakeWorker] = []
        self.pool_nodes: list[control_pb2.Member] = []
        self._model, self._config, self._times, self._tracer = model, config, times, tracer
        self.proxy: Core
        self.server: ProxyServer | None = None  # with its fronts only where a test asks for them
        self.addresses: Addresses
        self._running = AsyncExitStack()  # all that was started, whatever comes of the rest

    async def start(
        self, prefill: int, decode: int, mixed: int, *, fronts: bool, max_model_len: Mapping[str, int]
    ) -> None:
        roles = {"prefill": worker_pb2.ROLE_PREFILL, "decode": worker_pb2.ROLE_DECODE, "mixed": worker_pb2.ROLE_MIXED}
        for name, count in (("prefill", prefill), ("decode", decode), ("mixed", mixed)):
            self.workers += [FakeWorker(f"{name}-{i}", roles[name]) for i in range(count)]
        self._running.push_async_callback(self._stop_workers)
        for worker in self.workers:
            worker.max_model_len = max_model_len.get(worker.name, worker.max_model_len)
            await worker.start()
        self._running.push_async_callback(self.controller.stop)
        await self.controller.start()
        self.controller.publish(self.workers)
        self.proxy = Core(self._config, self._model, self.controller.address, self._times, tracer=self._tracer)
        if fronts:
            tls = server_credentials(self._config.tls_cert, self._config.tls_key)
            self.server = ProxyServer(self._config, self.proxy, KeyStore.open(self._config.keys_file), tls)
            self.addresses = await self.server.start()
            self._running.push_async_callback(self.server.stop)
        else:
            self._running.push_async_callback(self.proxy.stop)
            self.proxy.start()
        if decode or mixed:
            await self.until(lambda: self.proxy.service.is_ready)

    async def stop(self) -> None:
        await self._running.aclose()

    async def _stop_workers(self) -> None:
        """Those too that a test has added."""
        for worker in self.workers:
            await worker.stop()

    def worker(self, name: str) -> FakeWorker:
        return next(worker for worker in self.workers if worker.name == name)

    @property
    def prefill(self) -> FakeWorker:
        return self.worker("prefill-0")

    @property
    def decode(self) -> FakeWorker:
        return self.worker("decode-0")

    def publish(self) -> None:
        """Tells the proxy the workers as they are now."""
        self.controller.publish(self.workers, self.pool_nodes)

    async def start_pool(self, *names: str) -> None:
        """From now on the membership has these pool nodes, and no others."""
        self.pool_nodes = [
            control_pb2.Member(
                worker=name,
                incarnation=f"{name}-1",
                role=worker_pb2.ROLE_POOL,
                state=control_pb2.WORKER_READY,
                address=f"{name}:1",
            )
            for name in names
        ]
        self.publish()
        await self.until(lambda: len(self.proxy.pool.pool_nodes) == len(names))

    async def submit(self, prompt: str | Prompt = "hi", **options: object) -> Lifecycle:
        """A request with one choice."""
        generation = await self.proxy.service.submit(self.request(prompt, **options))  # type: ignore[arg-type]
        (choice,) = generation.choices
        return choice

    async def starts(self) -> tuple[worker_pb2.StartPrefill, worker_pb2.StartDecode]:
        """What the two first workers are told of the next request."""
        return await self.prefill.next_start(), await self.decode.next_start()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits while the loop runs; a condition that never holds fails the test."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  no event announces these conditions
                await asyncio.sleep(0.001)

    def request(
        self,
        prompt: str | Prompt | tuple[Prompt, ...] = "hi",
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        priority: Priority = NORMAL,
        kv_mode: KvMode | None = None,
        writes_back: bool = False,
        caller: Caller = NOBODY,
        slo: Slo = NO_SLO,
        traceparent: str = "",
        **sampling: object,
    ) -> GenerationRequest:
        given = TextPrompt(prompt) if isinstance(prompt, str) else prompt
        return GenerationRequest(
            model=None,
            request_id=request_id or new_request_id(),
            prompts=given if isinstance(given, tuple) else (given,),
            sampling=Sampling(**sampling),  # type: ignore[arg-type]
            timeout_s=timeout_s,
            priority=priority,
            kv_mode=kv_mode,
            writes_back=writes_back,
            caller=caller,
            slo=slo,
            traceparent=traceparent,
        )

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        total = 0.0
        for line in self.proxy.metrics.exposition().decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.startswith(name + "{") and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total


async def collect(lifecycle: Lifecycle) -> tuple[str, FinishedEvent]:
    """The whole text and the end. Raises ApiError when the request failed."""
    text = ""
    async with asyncio.timeout(PATIENCE_S):
        async for event in lifecycle.events:
            if isinstance(event, FinishedEvent):
                return text, event
            text += event.text
    raise AssertionError("no end came")


MakeCluster = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def make_cluster(model: ServedModel) -> AsyncIterator[MakeCluster]:
    """Starts clusters: `await make_cluster(prefill=2, max_queued_requests=1)`; other words are settings."""
    started: list[Cluster] = []

    async def make(
        prefill: int = 1,
        decode: int = 1,
        mixed: int = 0,
        *,
        fronts: bool = False,
        silent_s: float = 10.0,
        tracer: Tracer | None = None,
        max_model_len: Mapping[str, int] = MappingProxyType({}),
        **settings: object,
    ) -> Cluster:
        usual = {"grpc_port": 0, "http_port": 0, "drain_timeout_s": 0.0, "local_prefill": "if_needed"}
        config = ProxyConfig.model_validate({**usual, **settings})
        times = LinkTimes(silent_s=silent_s, ping_s=silent_s / 5, first_backoff_s=0.01)
        cluster = Cluster(model, config, times, tracer)
        started.append(cluster)
        await cluster.start(prefill, decode, mixed, fronts=fronts, max_model_len=max_model_len)
        return cluster

    yield make
    for cluster in started:
        await cluster.stop()


@pytest.fixture
async def cluster(make_cluster: MakeCluster) -> Cluster:
    return await make_cluster()


@pytest.fixture
async def served(make_cluster: MakeCluster) -> Cluster:
    """One with its fronts."""
    return await make_cluster(fronts=True)


@pytest.fixture
async def http(served: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(f"http://{served.addresses.http}") as client:
        yield client


@pytest.fixture
async def client(served: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"http://{served.addresses.http}/v1"
    options: dict[str, Any] = {"max_retries": 0, "timeout": PATIENCE_S, "http_client": http_client(base_url)}
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", **options) as client:
        yield client


def http_client(base_url: str) -> httpx.AsyncClient:
    """No certificate is loaded, which would take longer than most tests."""
    return httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, verify=False)


async def events(response: httpx.Response) -> list[Any]:
    """The data of a whole stream, parsed strictly."""
    lines = [line async for line in response.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [strict_json(data) if (data := line[6:]) != "[DONE]" else data for line in lines]


def strict_json(text: str | bytes) -> Any:
    """Refuses NaN and the infinities, which Python's own parser would take."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def admit(raw: bytes, kind: type[CompletionBody] | type[ChatBody], model: ServedModel) -> None:
    """All that is checked before anything runs."""
    parsed = parse(raw, kind)
    request = GenerationRequest(parsed.model, "id", parsed.to_prompts(), parsed.sampling())
    request.check(model, model.max_model_len)
    for ids in prompts.all_to_ids(request.prompts, model, model.max_model_len):
        room = prompts.check_room(len(ids), model.max_model_len)
        samplings.resolve(request.sampling, model.eos_token_ids, room)
