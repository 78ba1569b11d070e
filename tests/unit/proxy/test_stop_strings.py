"""Stop strings: the same text and the same end, however the text is cut into tokens."""

from __future__ import annotations

import itertools

import pytest

from proxy.text.stop_strings import StopStrings


def run(stops: list[str], pieces: list[str], *, included: bool = False) -> tuple[list[str], bool]:
    """What is sent for each piece, then what is sent at the end; and whether a stop string was met."""
    matcher = StopStrings(stops, included=included)
    sent = []
    for piece in pieces:
        text, stopped = matcher.add(piece)
        sent.append(text)
        if stopped:
            return sent, True
    return [*sent, matcher.finish()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "stopped"),
    [
        ([], ["a", "b"], ["a", "b", ""], False),
        (["END"], ["aEN", "D b"], ["a", ""], True),
        (["END"], ["aEN", "d"], ["a", "ENd", ""], False),  # a near miss is sent in full
        (["END"], ["aEN"], ["a", "EN"], False),  # cut in the middle of what could have been one
        (["END"], ["END"], [""], True),  # at the first token
        (["aab"], ["aaa", "b"], ["a", ""], True),  # a match that starts inside a near miss
        (["abab"], ["ab", "aab", "ab"], ["", "aba", ""], True),
        (["abcd", "bc"], ["abcd"], ["a"], True),  # the one that is complete first
        (["abcd", "bc"], ["abc", "d"], ["a"], True),
        (["bc", "abc"], ["xabc"], ["x"], True),  # of two that are complete at once, the longer
        (["\n\n"], ["a\n", "\nb"], ["a", ""], True),
        (["é"], ["caf", "é"], ["caf", ""], True),
        (["👨‍👩‍👧"], ["x👨", "‍👩", "‍👧y"], ["x", "", ""], True),
    ],
)
def test_nothing_of_a_match_is_sent_and_near_misses_are_sent_in_full(
    stops: list[str], pieces: list[str], expected: list[str], stopped: bool
) -> None:
    assert run(stops, pieces) == (expected, stopped)


def test_the_cut_into_pieces_makes_no_difference() -> None:
    text, stops = "xababacabad", ["abac", "bad"]
    expected = "xab"
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        pieces, piece = [], text[0]
        for character, cut in zip(text[1:], cuts, strict=True):
            if cut:
                pieces.append(piece)
                piece = ""
            piece += character
        sent, stopped = run(stops, [*pieces, piece])
        assert ("".join(sent), stopped) == (expected, True)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "stopped"),
    [
        (["END"], ["aEN", "D b"], ["aEN", "D"], True),
        (["END"], ["aEN", "d"], ["aEN", "d", ""], False),
        (["bc", "abc"], ["xabcd"], ["xabc"], True),
    ],
)
def test_an_included_match_is_sent_without_holding_anything_back(
    stops: list[str], pieces: list[str], expected: list[str], stopped: bool
) -> None:
    assert run(stops, pieces, included=True) == (expected, stopped)


def test_a_match_that_may_not_stop_is_text_and_the_next_one_stops() -> None:
    matcher = StopStrings(["aa"])
    assert matcher.add("xaa", may_stop=False) == ("xa", False)  # the last could begin one
    assert matcher.add("a") == ("", True)
    again = StopStrings(["END"])
    assert again.add("END", may_stop=False) == ("END", False)
    assert again.add("END") == ("", True)
