"""Incremental detokenising: joined it is the text of all tokens, and no piece holds half a character."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from proxy.model import ServedModel
from proxy.text.detokenizer import Detokenizer, TokenBytes, UnsupportedTokenizer

TEXTS = [
    "plain",
    "žluťoučký kůň",
    "日本語のテキスト",
    "ภาษาไทย",
    "👨‍👩‍👧‍👦 family 🏳️‍🌈",
    "a\u0301" * 50,
    "mixed 🙂 and \u200f right-to-left, NUL \0 too",
    "\ufffd is a character of its own",
]


def sentencepiece_tokenizer() -> Tokenizer:
    """Llama 2's kind: words with a visible space, single bytes as a fallback."""
    vocab = {"<unk>": 0, "</s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    for word in ("▁hello", "▁world", "▁", "l", "o"):
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


def pieces(token_bytes: TokenBytes, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(token_bytes, prompt or [])
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()]


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_join_to_the_text_and_never_split_a_character(model: ServedModel, text: str) -> None:
    detokenizer = model.tokenizer.detokenizer([])
    got = [detokenizer.add(byte) for byte in text.encode()]
    assert "".join(got) + detokenizer.finish() == text
    assert sum("\ufffd" in piece for piece in got) == text.count("\ufffd")


def test_a_trained_byte_level_vocabulary_decodes_as_the_library_does() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    token_bytes = TokenBytes(tokenizer)
    draw = random.Random(1)
    for _ in range(300):
        ids = [draw.randrange(tokenizer.get_vocab_size()) for _ in range(draw.randrange(1, 12))]
        assert "".join(pieces(token_bytes, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_cut_at_the_end_becomes_one_replacement_character(model: ServedModel) -> None:
    detokenizer = model.tokenizer.detokenizer([])
    assert [detokenizer.add(byte) for byte in "a🙂".encode()[:-1]] == ["a", "", "", ""]
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("given", [1, 2, 3])
def test_a_character_that_the_prompt_began_is_completed_and_the_prompt_not_repeated(
    model: ServedModel, given: int
) -> None:
    whole = "🙂".encode()
    detokenizer = model.tokenizer.detokenizer([*b"prompt", *whole[:given]])
    text = "".join(detokenizer.add(byte) for byte in [*whole[given:], *b"!"])
    assert text + detokenizer.finish() == "🙂!"


def test_a_character_that_the_prompt_began_and_nobody_completes_is_not_the_answers(model: ServedModel) -> None:
    detokenizer = model.tokenizer.detokenizer([*b"prompt", *"🙂".encode()[:2]])
    assert detokenizer.add(ord("x")) == "x"
    lonely = model.tokenizer.detokenizer([*b"prompt", *"🙂".encode()[:2]])
    assert lonely.finish() == ""


def test_special_tokens_and_unknown_ids_have_no_text(model: ServedModel) -> None:
    detokenizer = model.tokenizer.detokenizer([])
    assert [detokenizer.add(token_id) for token_id in (ord("a"), 256, 99999, ord("b"))] == ["a", "", "", "b"]


def test_byte_fallback_keeps_the_space_between_prompt_and_answer() -> None:
    tokenizer = sentencepiece_tokenizer()
    token_bytes = TokenBytes(tokenizer)
    ids = [tokenizer.get_vocab()[token] for token in ("▁hello", "▁world", "l")]
    assert pieces(token_bytes, ids) == [" hello", " world", "l", ""]
    emoji = [2 + byte for byte in "🙂".encode()]
    assert pieces(token_bytes, [*emoji, ids[2]]) == ["", "", "", "🙂", "l", ""]


def test_an_unknown_kind_of_decoder_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedTokenizer, match="WordPiece"):
        TokenBytes(tokenizer)
