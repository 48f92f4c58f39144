"""Cascades that meet stay distinct, and only a readable number of them is named."""

from dagster_ips.core.cascade import Cascade, short, together


def test_a_cascade_started_by_a_person_comes_first_and_then_the_newest() -> None:
    met = together([Cascade(("1004",)), Cascade(("1003", "1002")), Cascade(("kxyzabcd", "1001"))])
    assert (met.ids, met.main) == (("kxyzabcd", "1004", "1003", "1002", "1001"), "kxyzabcd")


def test_of_many_cascades_the_first_are_named_and_the_others_counted_through_all_stages() -> None:
    met = together(Cascade((str(number),)) for number in range(2000, 1990, -1))
    assert str(met) == "2000,1999,1998,1997,1996,+5"
    again = together([Cascade(("2001",)), Cascade.from_text(str(met))])
    assert str(again) == "2001,2000,1999,1998,1997,+6"


def test_the_text_of_a_cascade_is_read_back_unchanged() -> None:
    for cascade in (Cascade(), Cascade(("a",)), Cascade(("a", "7"), more=12)):
        assert Cascade.from_text(str(cascade)) == cascade


def test_the_id_of_a_run_or_a_snapshot_is_shortened_once_and_others_stay() -> None:
    run, snapshot = "309d1c24-4d92-4c3a-9d3a-6e0f6f0b7a11", "8371507338330841060"
    met = together([Cascade.of([run]), Cascade.from_text(f"{snapshot},ljzpbrjc-revert"), Cascade.of([short(snapshot)])])
    assert met.ids == ("309d1c24", "ljzpbrjc-revert", "8371507338")
