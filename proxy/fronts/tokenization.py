"""Text to token ids and back for both ports, without any generation; what is long is done aside."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from proxy.errors import invalid
from proxy.service import GenerationService
from proxy.text import prompt as prompts
from proxy.text.prompt import ChatPrompt, TextPrompt, TokenPrompt

ANY_LENGTH = sys.maxsize  # who counts a text's tokens may have more than the context holds


class Tokenization:
    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def to_ids(self, model: str | None, prompt: TextPrompt | ChatPrompt) -> list[int]:
        """Raises ApiError."""
        self._service.check_model(model)
        return await self._service.aside.run(prompts.is_large(prompt), self._to_ids, prompt)

    async def to_text(self, model: str | None, ids: Sequence[int]) -> str:
        """Raises ApiError."""
        self._service.check_model(model)
        served = self._service.model
        for token_id in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= token_id < served.vocab_size:
                text = f"token id {token_id} is not in the vocabulary of {served.vocab_size} tokens"
                raise invalid("tokens", text)
        is_large = prompts.is_large(TokenPrompt(tuple(ids)))
        return await self._service.aside.run(is_large, served.tokenizer.text, ids)

    def _to_ids(self, prompt: TextPrompt | ChatPrompt) -> list[int]:
        if isinstance(prompt, TextPrompt) and not prompt.text:
            return self._service.model.tokenizer.encode("", add_special_tokens=prompt.adds_special_tokens)
        prompts.check(prompt, self._service.model, ANY_LENGTH)
        return prompts.to_ids(prompt, self._service.model, ANY_LENGTH)
