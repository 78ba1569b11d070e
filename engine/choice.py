"""Chooses the next token of each row: greedy, or by temperature, min_p, top_k and top_p.

A drawn token depends on its own logits, parameters, seed and position only: never on neighbours, on which worker draws,
or on how often the request was preempted.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.request import SamplingParams

GREEDY_BELOW = 1e-5  # a temperature under this is greedy: the quotient would leave float32
FEW_CANDIDATES = (256, 4096)  # top_p alone seldom keeps more; looked at before all tokens are sorted
CPU_ROWS = 4  # drawn at once: what they need stays in the cache, and the allocator need not ask for fresh pages


def choose_tokens(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """One token for each row of `logits`, float32 `[num_rows, vocab_size]`.

    `positions[i]` is the index that row i's token will have in its request's `token_ids`.
    """
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [i for i, row_params in enumerate(params) if not is_greedy(row_params)]
    step = max(len(drawn), 1) if logits.is_cuda else CPU_ROWS
    for rows in (drawn[i : i + step] for i in range(0, len(drawn), step)):
        chosen = _draw(logits[rows], [params[i] for i in rows], [positions[i] for i in rows])
        for i, token in zip(rows, chosen, strict=True):
            tokens[i] = token
    return tokens


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW or params.top_k == 1 or params.top_p <= 0


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a function of its arguments alone: counter-based, by a hash."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed % 2**64, position), digest_size=6, person=b"pdserve-draw").digest()
    return int.from_bytes(digest, "little") / 2**48


def distribution(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """How likely each token is to be drawn, `[num_rows, vocab_size]`; a row's sum may be below 1."""
    temperatures = torch.tensor([[row.temperature] for row in params], device=logits.device)
    probabilities = ((logits - logits.amax(dim=-1, keepdim=True)) / temperatures).softmax(dim=-1)
    if any(row.min_p > 0 for row in params):
        min_p = torch.tensor([[row.min_p] for row in params], device=logits.device)
        probabilities.masked_fill_(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), 0)
    for row, row_params in zip(probabilities, params, strict=True):
        _keep_top(row, row_params)
    return probabilities


def _draw(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Inverts the cumulative distribution in the order of the vocabulary, where rounding cannot swap two tokens."""
    cumulative = distribution(logits, params).to(torch.float64).cumsum(dim=-1)
    draws = [[uniform(row.seed, position)] for row, position in zip(params, positions, strict=True)]
    targets = torch.tensor(draws, dtype=torch.float64, device=logits.device) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    tokens: list[int] = drawn.clamp(max=logits.shape[-1] - 1).tolist()  # past the end only where logits are NaN
    return tokens


def _keep_top(probabilities: Tensor, params: SamplingParams) -> None:
    """Zeroes, in this row, all but the `top_k` likeliest tokens, and of those all but the first that reach `top_p`.

    `top_p` is a share of what `min_p` and `top_k` leave.
    """
    size = probabilities.numel()
    top_k = min(params.top_k or size, size)
    if top_k == size and params.top_p >= 1:
        return
    mass = float(probabilities.sum())
    few = [count for count in FEW_CANDIDATES if count < size] if top_k == size else []
    for count in [*few, top_k]:
        values, token_ids = probabilities.topk(count)
        if float(values.sum()) >= params.top_p * mass:
            break
    if params.top_p < 1:
        total = values.sum() if top_k < size else mass
        before = values.cumsum(dim=0) - values  # mass of the likelier ones
        kept = before < params.top_p * total
        kept[0] = True
        values, token_ids = values[kept], token_ids[kept]
    probabilities.zero_()
    probabilities[token_ids] = values
