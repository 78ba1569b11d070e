"""A bounded log: the newest are kept, numbered, and a reader learns from where on."""

from __future__ import annotations

from engine.record_log import RecordLog


def filled(capacity: int, num_records: int) -> RecordLog[int]:
    log = RecordLog[int](capacity)
    for number in range(num_records):
        log.append(number)
    return log


def test_the_newest_records_are_kept() -> None:
    assert filled(3, 5).since(0) == (2, [2, 3, 4])


def test_a_reader_goes_on_where_it_was() -> None:
    log = filled(8, 5)
    assert log.since(3) == (3, [3, 4])
    assert log.since(5) == (5, [])
    log.append(5)
    assert log.since(5) == (5, [5])


def test_a_number_that_is_not_there_yet_gives_nothing() -> None:
    assert filled(3, 2).since(9) == (2, [])


def test_without_room_nothing_is_kept() -> None:
    assert filled(0, 4).since(0) == (4, [])
