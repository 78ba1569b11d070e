"""What a client asks, whichever port it used; and, once its prompts are token ids, the choices that it becomes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from proxy.access.caller import Caller
from proxy.admission.slo import NO_SLO, Slo
from proxy.model import ServedModel
from proxy.request import sampling as samplings
from proxy.request.job import Job
from proxy.request.kv_mode import KvMode
from proxy.request.priority import NORMAL, Priority
from proxy.request.sampling import Sampling
from proxy.text import prompt as prompts
from proxy.text.prompt import Prompt
from proxy.text.stop_strings import StopStrings
from proxy.text.text_output import TextOutput
from rpc import worker_pb2

NOBODY = Caller.without_key("")


def new_request_id() -> str:
    return f"req-{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Admission:
    at: float  # the loop's clock
    longest_s: float  # the most that a deadline may be away
    kv_mode: KvMode = KvMode.P2P  # of a request that does not say
    traceparent: str = ""  # of the request's span


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    model: str | None  # None or empty: the one that is served
    request_id: str
    prompts: tuple[Prompt, ...]  # each gets `sampling.n` choices, all of them before the next prompt's
    sampling: Sampling
    timeout_s: float | None = None
    priority: Priority = NORMAL
    cache_salt: str = ""
    visible_tokens: tuple[str, ...] = ()  # special tokens that are part of the text
    kv_mode: KvMode | None = None  # None: the cluster's
    writes_back: bool = False
    caller: Caller = NOBODY
    slo: Slo = NO_SLO
    traceparent: str = field(default="", compare=False)  # the client's, unchecked: who asks the same again has another

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.sampling.n

    @property
    def is_large(self) -> bool:
        return any(prompts.is_large(prompt) for prompt in self.prompts)

    def check(self, model: ServedModel, max_model_len: int) -> None:
        """Raises ApiError for what can be refused before the prompts are token ids."""
        samplings.check(self.sampling, model.vocab_size, len(self.prompts))
        for prompt in self.prompts:
            prompts.check(prompt, model, max_model_len)

    def choices(
        self,
        prompt_ids: Sequence[Sequence[int]],
        model: ServedModel,
        max_model_len: int,
        admission: Admission,
        grammar: str = "",
    ) -> list[tuple[Job, TextOutput]]:
        """Those of the first prompt, then of the next. Raises ApiError when the context is too short for one.

        `grammar`: the structured output, compiled.
        """
        found: list[tuple[Job, TextOutput]] = []
        for ids in map(tuple, prompt_ids):  # one for all choices of a prompt
            room = prompts.check_room(len(ids), max_model_len)
            params = samplings.resolve(self.sampling, model.eos_token_ids, room, grammar)
            for number in range(self.sampling.n):
                job = self._job(ids, samplings.for_choice(params, number), admission)
                job = replace(job, choice=len(found), is_first_of_prompt=number == 0)
                found.append((job, self._output(ids, model)))
        return found

    def _job(self, ids: tuple[int, ...], params: worker_pb2.SamplingParams, admission: Admission) -> Job:
        longest_s = admission.longest_s
        return Job(
            request_id=self.request_id,
            wire_id=f"{self.request_id}.{secrets.token_hex(4)}",
            session=secrets.token_bytes(16),
            prompt_ids=ids,
            sampling=params,
            admitted_at=admission.at,
            timeout_s=longest_s if self.timeout_s is None else min(self.timeout_s, longest_s),
            priority=self.priority,
            cache_salt=self.cache_salt,
            kv_mode=self.kv_mode or admission.kv_mode,
            keeps_kv_mode=self.kv_mode is not None,
            writes_back=self.writes_back,
            tenant=self.caller.tenant,
            max_running=self.caller.limits.max_running,
            traceparent=admission.traceparent,
        )

    def _output(self, ids: Sequence[int], model: ServedModel) -> TextOutput:
        includes_stop = self.sampling.include_stop_str_in_output
        return TextOutput(
            model.tokenizer.detokenizer(ids, self.visible_tokens),
            StopStrings(self.sampling.stop, included=includes_stop),
            min_tokens=self.sampling.min_tokens,
            includes_stop=includes_stop,
        )
