"""Cascades that meet are kept apart, and never more of them than can be read."""

from dagster_ips.core.cascade import Cascade, together


def test_what_a_person_started_comes_first_and_then_the_newest() -> None:
    met = together([Cascade(("1004",)), Cascade(("1003", "1002")), Cascade(("kxyzabcd", "1001"))])
    assert (met.ids, met.main) == (("kxyzabcd", "1004", "1003", "1002", "1001"), "kxyzabcd")


def test_of_many_the_first_are_named_and_the_others_counted_stage_after_stage() -> None:
    met = together(Cascade((str(number),)) for number in range(2000, 1990, -1))
    assert str(met) == "2000,1999,1998,1997,1996,+5"
    again = together([Cascade(("2001",)), Cascade.from_text(str(met))])
    assert str(again) == "2001,2000,1999,1998,1997,+6"


def test_what_is_written_is_read_again() -> None:
    for cascade in (Cascade(), Cascade(("a",)), Cascade(("a", "7"), more=12)):
        assert Cascade.from_text(str(cascade)) == cascade
