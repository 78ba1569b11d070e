"""Tokens to what the client sees: text, the ids that count, and the end."""

from __future__ import annotations

from proxy.model import ServedModel
from proxy.text.stop_strings import StopStrings
from proxy.text.text_output import Piece, TextOutput
from rpc import worker_pb2
from tests.unit.proxy.fake_worker import logprobs_of


def output(model: ServedModel, *stops: str, min_tokens: int = 0, included: bool = False) -> TextOutput:
    matcher = StopStrings(stops, included=included)
    return TextOutput(model.tokenizer.detokenizer([]), matcher, min_tokens=min_tokens, includes_stop=included)


def logprobs(ids: bytes) -> list[worker_pb2.TokenLogprobs]:
    return [logprobs_of(token_id, 1) for token_id in ids]


def told(piece: Piece) -> list[tuple[int, int]]:
    """Of each entry the token and where its text begins."""
    return [(entry.chosen.token_id, entry.text_offset) for entry in piece.logprobs]


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


def test_each_id_that_counts_has_its_logprobs_also_while_its_text_is_held(model: ServedModel) -> None:
    text = output(model, "END")
    held = text.add(b"aE", None, logprobs(b"aE"))
    assert (held.text, told(held)) == ("a", [(ord("a"), 0), (ord("E"), 1)])
    stopped = text.add(b"NDxyz", None, logprobs(b"NDxyz"))
    assert (stopped.finish_reason, told(stopped)) == ("stop", [(ord("N"), 2), (ord("D"), 3)])


def test_pieces_of_a_character_begin_where_it_does(model: ServedModel) -> None:
    ids = "a🙂b".encode()
    piece = output(model).add(ids, "length", logprobs(ids))
    assert [offset for _, offset in told(piece)] == [0, 1, 1, 1, 1, 2]


def test_the_stop_token_has_logprobs_too(model: ServedModel) -> None:
    piece = output(model).add([*b"ok", 256], "stop", [logprobs_of(1, 0)] * 3)
    assert [token_id for token_id, _ in told(piece)] == [*b"ok", 256]


def test_a_stop_string_does_not_end_the_text_before_min_tokens(model: ServedModel) -> None:
    text = output(model, "END", min_tokens=5)
    assert text.add(b"END", None) == Piece(tuple(b"END"), "END", None)
    assert text.add(b"xEND", None) == Piece(tuple(b"xEND"), "x", "stop")


def test_a_stop_string_that_min_tokens_completes_ends_the_text(model: ServedModel) -> None:
    assert output(model, "END", min_tokens=3).add(b"ENDx", None) == Piece(tuple(b"END"), "", "stop")


def test_included_are_the_stop_string_and_the_text_of_a_stop_token(model: ServedModel) -> None:
    assert output(model, "END", included=True).add(b"aENDx", None) == Piece(tuple(b"aEND"), "aEND", "stop")
    assert output(model, included=True).add(b"ok.", "stop") == Piece(tuple(b"ok."), "ok.", "stop")
    assert output(model, included=True).add([*b"ok", 256], "stop") == Piece((*b"ok", 256), "ok", "stop")
