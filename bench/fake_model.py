"""A model folder that `engine.build` serves with the fake runner, and a byte-level tokenizer beside it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.fake_runner import EOS_TOKEN_ID, MODEL_TYPE, VOCAB_SIZE, FakeModel

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_fake_model(folder: Path, model: FakeModel | None = None) -> Path:
    """Writes the folder; its token ids are the bytes of the text."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model or FakeModel()
    sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": model.max_model_len, "eos_token_id": EOS_TOKEN_ID}
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPE, **sizes, "fake": asdict(model)}))
    alphabet = bytes_to_unicode()
    vocab = {alphabet[byte]: byte for byte in range(256)} | {"<|end|>": EOS_TOKEN_ID}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": "<|end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_TOKEN_ID}))
    return folder


def bytes_to_unicode() -> dict[int, str]:
    """GPT-2's byte alphabet: each byte as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
