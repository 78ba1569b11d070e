"""OpenAI's two forms of logprobs, one for each endpoint. Pure.

`token` is the token as a text of its own: U+FFFD stands for bytes that are no whole character; `bytes` are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.request.logprobs import Logprob, TokenLogprobs
from proxy.text.tokenizer import Tokenizer


def completion_logprobs(told: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """Tokens of the same text, as pieces of characters have, share an entry of `top_logprobs`: the likeliest's."""
    return {
        "tokens": [tokenizer.token(each.chosen.token_id) for each in told],
        "token_logprobs": [each.chosen.logprob for each in told],
        "top_logprobs": [_by_text(each, tokenizer) for each in told],
        "text_offset": [each.text_offset for each in told],
    }


def chat_logprobs(told: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    content = []
    for each in told:
        top = [_token_object(other, tokenizer) for other in each.top]
        content.append({**_token_object(each.chosen, tokenizer), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _by_text(told: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest, and the chosen one in any case."""
    found: dict[str, float] = {}
    for each in (*told.top, told.chosen):
        found.setdefault(tokenizer.token(each.token_id), each.logprob)
    return found


def _token_object(told: Logprob, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": tokenizer.token(told.token_id),
        "logprob": told.logprob,
        "bytes": list(tokenizer.token_bytes(told.token_id)),
    }
