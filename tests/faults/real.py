"""The same between real processes: the real model, KV over NIXL or Gloo, spoiled gRPC, and what is stopped or killed.

Each text is compared with the one that the same prompt got before anything was spoiled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import grpc
from tokenizers import Tokenizer

from rpc import inference_pb2, inference_pb2_grpc
from tests.faults.real_cluster import RealCluster, faults_of
from tests.faults.real_plan import GRACE_S, NUM_TOKENS, REQUEST_S, RealPlan, RealResult

ROOT = Path(__file__).parents[2]
OUTCOMES = {"p2p": "valid", "local": "recomputed", "pooled": "pooled"}  # by the path that the proxy reports


class RealRun:
    """One use: `run`."""

    def __init__(self, plan: RealPlan) -> None:
        self._plan = plan
        self.result = RealResult(faults_of(plan))
        self._cluster = RealCluster(plan, self.result.faults, self.result)
        self._served = threading.Event()

    def run(self) -> RealResult:
        started_at = time.monotonic()
        try:
            self._cluster.start()
            prompts = make_prompts(self._plan)
            undisturbed = self._ask_all(prompts, lambda _, prompt: self._ask(prompt, {}))
            self.result.outcomes.clear()
            self._cluster.spoil(True)
            chosen = Random(f"{self._plan.seed} order").choices(range(len(prompts)), k=self._plan.num_handoffs)
            with ThreadPoolExecutor(1) as pool:
                mishaps = pool.submit(self._have_mishaps)
                texts = self._ask_all([prompts[i] for i in chosen], self._serve)
                self._served.set()
                mishaps.result()
            for n, (i, text) in enumerate(zip(chosen, texts, strict=True)):
                if text is not None and text != undisturbed[i]:
                    self.result.wrong_texts.append(f"request {n}, prompt {i}: {text}, alone {undisturbed[i]}")
            self._cluster.check_left_over()
        finally:
            self._cluster.stop()
        self.result.seconds = time.monotonic() - started_at
        return self.result

    def _ask_all(
        self, prompts: list[list[int]], ask: Callable[[int, list[int]], list[int] | None]
    ) -> list[list[int] | None]:
        with ThreadPoolExecutor(self._plan.num_at_once) as pool:
            return list(pool.map(ask, range(len(prompts)), prompts))

    def _serve(self, n: int, prompt: list[int]) -> list[int] | None:
        """Its tokens, or None for an error; a hang is noted. Only pooled ones share cached prefixes."""
        headers = {"x-tenant": f"tenant-{n}"}
        if self._plan.has_pool and n % 2:
            headers = {"x-kv-mode": "pooled", "x-kv-write-back": "true" if n % 4 == 1 else "false"}
        started_at = time.monotonic()
        try:
            return self._ask(prompt, headers)
        except grpc.RpcError as error:
            if time.monotonic() - started_at > REQUEST_S + GRACE_S / 2:
                self.result.hangs.append(f"request {n}")
            self.result.outcomes[f"failed: {error.code().name.lower()}"] += 1
            return None

    def _ask(self, prompt: list[int], headers: dict[str, str]) -> list[int]:
        sampling = inference_pb2.Sampling(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=prompt), sampling=sampling)
        tokens: list[int] = []
        with grpc.insecure_channel(self._cluster.grpc) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            for response in stub.Generate(request, timeout=REQUEST_S + GRACE_S, metadata=tuple(headers.items())):
                tokens += response.token.ids
                if response.WhichOneof("event") == "finished":
                    self.result.outcomes[OUTCOMES[response.finished.path]] += 1
        return tokens

    def _have_mishaps(self) -> None:
        """One after the other, for as long as requests are served."""
        rng = Random(f"{self._plan.seed} mishaps")
        while not self._served.wait(self._plan.time_scale * rng.uniform(0.5, 5.0)):
            self._cluster.have_mishap(rng)


def make_prompts(plan: RealPlan) -> list[list[int]]:
    """Of real text, each from another place."""
    tokenizer = Tokenizer.from_file(str(plan.model_dir / "tokenizer.json"))
    ids = tokenizer.encode((ROOT / "LICENSE").read_text(), add_special_tokens=False).ids
    rng = Random(f"{plan.seed} prompts")
    starts = rng.sample(range(len(ids) - 200), plan.num_prompts)
    return [ids[start : start + rng.choice([1, 15, 16, 17, 40, 64, 100, 150])] for start in starts]
