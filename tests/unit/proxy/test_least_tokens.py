"""How few tokens a text can have: known only where a tokenizer keeps every character."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from bench.fake_model import bytes_to_unicode
from proxy.text.least_tokens import NFC_SHRINKS, LeastTokens


def byte_level() -> Tokenizer:
    vocab = {character: byte for byte, character in bytes_to_unicode().items()} | {"hello": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def longest_token(tokenizer: Tokenizer) -> int | None:
    least = LeastTokens.by(tokenizer)
    return None if least is None else least.longest


def test_the_longest_token_of_the_vocabulary_counts() -> None:
    assert longest_token(byte_level()) == 5


def test_added_tokens_count_too() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|a special token|>"])
    assert longest_token(tokenizer) == 19


def test_composing_characters_makes_a_text_shorter() -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC()])
    assert longest_token(tokenizer) == 5 * NFC_SHRINKS


@pytest.mark.parametrize("normalizer", [normalizers.Strip(), normalizers.Replace("  ", ""), normalizers.StripAccents()])
def test_nothing_is_known_of_a_tokenizer_that_drops_characters(normalizer: normalizers.Normalizer) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    assert longest_token(tokenizer) is None


def test_nor_of_one_with_a_token_that_takes_in_the_spaces_beside_it() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert longest_token(tokenizer) is None


def test_nor_of_one_that_drops_what_it_splits_at() -> None:
    tokenizer = byte_level()
    split = pre_tokenizers.Split(" ", "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])
    assert longest_token(tokenizer) is None


def test_nor_of_one_without_a_token_for_every_byte() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    assert longest_token(tokenizer) is None


def test_a_byte_fallback_covers_every_byte() -> None:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581a": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    assert longest_token(tokenizer) == 6


def test_no_character_is_made_of_more_than_four_others() -> None:
    for code in range(0x110000):
        character = chr(code)
        if not "\ud800" <= character <= "\udfff":
            assert len(unicodedata.normalize("NFD", character)) <= NFC_SHRINKS


def test_characters_without_a_token_do_not_count() -> None:
    vocab = {letter: byte for byte, letter in bytes_to_unicode().items() if byte not in (0, 7)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    least = LeastTokens.by(tokenizer)
    assert least is not None
    assert least.dropped == "\0\a"
    assert least.of("a\0b\a" * 100) == 200 == len(tokenizer.encode("a\0b\a" * 100).ids)


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
def test_no_text_has_fewer_tokens_than_it_says(model_folder: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    least = LeastTokens.by(tokenizer)
    assert least is not None
    assert len(tokenizer.encode(text).ids) >= least.of(text)
