"""Tokens to what the client sees: text, the ids that count, and the end."""

from __future__ import annotations

from proxy.model import ServedModel
from proxy.stop_strings import StopStrings
from proxy.text_output import Piece, TextOutput


def output(model: ServedModel, *stops: str) -> TextOutput:
    return TextOutput(model.tokenizer.detokenizer([]), StopStrings(stops))


def test_ids_count_through_the_one_that_completes_a_stop_string(model: ServedModel) -> None:
    text = output(model, "END")
    assert text.add(b"abE", None) == Piece(tuple(b"abE"), "ab", None)
    assert text.add(b"NDxyz", None) == Piece(tuple(b"ND"), "", "stop")


def test_the_stop_token_itself_has_no_text_but_counts(model: ServedModel) -> None:
    assert output(model).add([*b"ok", 256], "stop") == Piece((*b"ok", 256), "ok", "stop")
    assert output(model).add([*b"ok."], "stop") == Piece(tuple(b"ok."), "ok", "stop")


def test_what_was_held_back_for_a_stop_string_is_sent_at_the_end(model: ServedModel) -> None:
    text = output(model, "END")
    assert text.add(b"xE", None).text == "x"
    assert text.add(b"N", "length") == Piece(tuple(b"N"), "EN", "length")


def test_a_half_character_is_replaced_at_the_end_only(model: ServedModel) -> None:
    text = output(model)
    assert text.add("é".encode()[:1], None).text == ""
    assert text.add(b"", "length") == Piece((), "\ufffd", "length")


def test_a_stop_string_is_found_across_a_character_that_comes_in_bytes(model: ServedModel) -> None:
    text = output(model, "é!")
    pieces = [text.add([byte], None) for byte in "aé!b".encode()[:4]]
    assert [piece.text for piece in pieces] == ["a", "", "", ""]
    assert pieces[-1].finish_reason == "stop"
