"""A client's sampling values: checked, then resolved to what a worker is told.

`check` names the field and the limit; after it, no value can break a worker.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass

from proxy.errors import invalid
from proxy.grammar.structured_output import StructuredOutput
from rpc import worker_pb2

MAX_TEMPERATURE = 2.0
GREEDY_BELOW = 1e-5  # a smaller temperature would overflow the logits, and means greedy anyway
MAX_TOP_K = 2**31 - 1
MAX_PENALTY = 2.0  # either way
MIN_REPETITION_PENALTY = 0.01  # it divides
MAX_REPETITION_PENALTY = 2.0
MAX_BIAS = 100.0  # either way
MAX_BIASES = 300
MAX_LOGPROBS = 20
MAX_CHOICES = 128  # of one request, all its prompts together
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKEN_IDS = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """As the client sent them; None where it sent nothing and zero would mean something else."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    min_tokens: int = 0
    num_logprobs: int | None = None  # likeliest tokens told with each one; None: nothing is told
    n: int = 1  # choices of each prompt
    structured_output: StructuredOutput | None = None


def check(sampling: Sampling, vocab_size: int, num_prompts: int = 1) -> None:
    """Raises ApiError for the first value that is out of its range."""
    _check_num_choices(num_prompts, sampling.n)
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise invalid("max_tokens", f"must be at least 1, not {sampling.max_tokens}")
    if sampling.min_tokens < 0:
        raise invalid("min_tokens", f"must be at least 0, not {sampling.min_tokens}")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise invalid("min_tokens", f"{sampling.min_tokens} are more than max_tokens, {sampling.max_tokens}")
    _check_structured_output(sampling)
    _check_choice_of_token(sampling)
    _check_penalties(sampling)
    _check_logit_bias(sampling, vocab_size)
    _check_stops(sampling, vocab_size)
    if sampling.num_logprobs is not None and not 0 <= sampling.num_logprobs <= MAX_LOGPROBS:
        raise invalid("logprobs", f"must be from 0 to {MAX_LOGPROBS} likeliest tokens, not {sampling.num_logprobs}")


def resolve(
    sampling: Sampling, eos_token_ids: frozenset[int], room: int, grammar: str = ""
) -> worker_pb2.SamplingParams:
    """What a worker is told. A missing seed is drawn here, once, so that every attempt has the same.

    `room`: tokens that the context still holds after the prompt. `grammar`: the structured output, compiled. Raises
    ApiError when more tokens are asked for than there is room.
    """
    for name, value in (("max_tokens", sampling.max_tokens or 0), ("min_tokens", sampling.min_tokens)):
        if value > room:
            raise invalid(
                name,
                f"{value} do not fit: after this prompt the context holds {room} more tokens",
                "context_length_exceeded",
            )
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    top_k = max(sampling.top_k or 0, 0)
    if top_p < GREEDY_BELOW:  # only the likeliest token is left
        top_p, top_k = 1.0, 1
    stop_ids = set(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_token_ids)
    return worker_pb2.SamplingParams(
        max_tokens=sampling.max_tokens or room,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=top_p,
        top_k=top_k,
        seed=secrets.randbits(64) if sampling.seed is None else sampling.seed % 2**64,
        stop_token_ids=sorted(stop_ids),
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        min_tokens=sampling.min_tokens,
        num_logprobs=sampling.num_logprobs,
        grammar=grammar,
    )


def for_choice(params: worker_pb2.SamplingParams, number: int) -> worker_pb2.SamplingParams:
    """The same with a seed of its own for each choice of a prompt; the first has the request's."""
    if number == 0:
        return params
    words = params.seed.to_bytes(8, "big") + number.to_bytes(8, "big")
    own = worker_pb2.SamplingParams()
    own.CopyFrom(params)
    own.seed = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
    return own


def _check_num_choices(num_prompts: int, n: int) -> None:
    if not 1 <= n <= MAX_CHOICES:
        raise invalid("n", f"must be from 1 to {MAX_CHOICES}, not {n}")
    if num_prompts * n > MAX_CHOICES:
        name = "n" if n > 1 else "prompt"
        raise invalid(name, f"{num_prompts} prompts with n = {n} are more than {MAX_CHOICES} choices")


def _check_structured_output(sampling: Sampling) -> None:
    """A grammar ends by the end of text, where it allows it."""
    if sampling.structured_output is not None:
        for name, is_set in (("ignore_eos", sampling.ignore_eos), ("min_tokens", sampling.min_tokens > 0)):
            if is_set:
                raise invalid(name, f"not together with {sampling.structured_output.field}")


def _check_choice_of_token(sampling: Sampling) -> None:
    _check_range("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE)
    _check_range("top_p", sampling.top_p, 0.0, 1.0)
    _check_range("min_p", sampling.min_p, 0.0, 1.0)
    if sampling.top_k is not None and not -1 <= sampling.top_k <= MAX_TOP_K:
        raise invalid("top_k", f"must be -1 or 0 (every token) up to {MAX_TOP_K}, not {sampling.top_k}")
    if sampling.seed is not None and not -(2**63) <= sampling.seed < 2**64:
        raise invalid("seed", "must fit 64 bits")


def _check_penalties(sampling: Sampling) -> None:
    _check_range("presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_range("frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    repetition = round(sampling.repetition_penalty, 6)  # float32's 0.01 is a little less
    _check_range("repetition_penalty", repetition, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)


def _check_logit_bias(sampling: Sampling, vocab_size: int) -> None:
    if len(sampling.logit_bias) > MAX_BIASES:
        raise invalid("logit_bias", f"at most {MAX_BIASES} tokens, not {len(sampling.logit_bias)}")
    for token_id, bias in sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise invalid("logit_bias", f"{token_id} is not in the vocabulary of {vocab_size} tokens")
        _check_range("logit_bias", bias, -MAX_BIAS, MAX_BIAS)


def _check_range(name: str, value: float | None, least: float, largest: float) -> None:
    if value is not None and not (math.isfinite(value) and least <= value <= largest):
        raise invalid(name, f"must be from {least:g} to {largest:g}, not {value}")


def _check_stops(sampling: Sampling, vocab_size: int) -> None:
    if len(sampling.stop) > MAX_STOP_STRINGS:
        raise invalid("stop", f"{len(sampling.stop)} strings are too many: at most {MAX_STOP_STRINGS}")
    for stop in sampling.stop:
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise invalid("stop", f"each string must have 1 to {MAX_STOP_LENGTH} characters, not {len(stop)}")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS}, not {len(sampling.stop_token_ids)}")
    for token_id in sampling.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid("stop_token_ids", f"{token_id} is not in the vocabulary of {vocab_size} tokens")
