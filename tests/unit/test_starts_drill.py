"""What the drill of starts takes for a fault."""

from __future__ import annotations

from bench.starts import SETTINGS, Ended, Since, fault_of, named, plan_start

TAKEN = {"proxy.http_port": 8000, "proxy.grpc_port": 8001}


def fault(ended: Ended) -> str | None:
    return fault_of(ended, TAKEN, num_workers=4, answer="right")


def test_the_same_seed_takes_the_same_ports_and_ten_starts_have_all_kinds() -> None:
    plans = [plan_start(0, number) for number in range(1, 11)]
    assert plans == [plan_start(0, number) for number in range(1, 11)]
    assert {since for plan in plans for since in plan.taken.values()} == set(Since)
    assert {setting for plan in plans for setting in plan.taken} == set(SETTINGS)
    assert any(not plan.taken for plan in plans)
    assert not any(plan.chosen & plan.taken.keys() for plan in plans)


def test_a_start_that_serves_is_whole_and_answers_right() -> None:
    assert fault(Ended(9.0, "", 4, "right")) is None
    assert fault(Ended(9.0, "", 3, "right")) == "it came up with 3 of 4 workers"
    assert fault(Ended(9.0, "", 4, "left")) == "it answered 'left', not 'right'"


def test_a_start_that_fails_names_a_taken_port_and_its_setting_in_one_line() -> None:
    said = "starting Ray …\nport 8001 (proxy.grpc_port) is taken by another process"
    assert named(said, TAKEN) == "proxy.grpc_port"
    assert fault(Ended(1.0, said)) is None
    for text in ("port 8001 is taken", "port 18001 (proxy.grpc_port) is taken", "(proxy.grpc_port)\n8001"):
        assert (fault(Ended(1.0, text)) or "").startswith("it did not start, and names no port that was taken:")


def test_a_start_that_fails_leaves_nothing() -> None:
    said = "port 8001 (proxy.grpc_port) is taken by another process"
    assert fault(Ended(1.0, said, is_left=True)) == "something of it is left"
