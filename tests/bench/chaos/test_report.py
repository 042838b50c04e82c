"""Test what the report of `./paceline chaos` makes of its figures."""

from dataclasses import asdict, replace

from bench.chaos.report import BAD, Injected, summary, table, with_silences

WELL = dict.fromkeys(("right", *BAD), 0)


def test_a_silence_belongs_to_the_fault_that_began_it() -> None:
    injected = [
        Injected(48.0, "half-open clients", 0.04, 0.02, 0.12, heard_s=3.44),
        Injected(51.44, "freeze beat", 4.02, 0.02, 3.28, heard_s=19.99),
        Injected(71.43, "full disk", 5.15, 0.51, 0.61, heard_s=9.0),
    ]
    silences = [("a", 48.4, 58.73), ("b", 49.0, 50.0), ("a", 71.3, 77.1), ("a", 0.2, 0.9)]
    assert [one.longest_stall_s for one in with_silences(injected, silences)] == [10.33, 0.0, 5.8]


def test_a_silence_lasts_from_the_last_token_before_the_fault_to_the_next() -> None:
    before, after = [("a", 9.0, 9.99), ("b", 9.2, 9.95)], [("a", 11.76, 11.8), ("b", 11.5, 11.6)]
    spanning = [("a", 9.99, 11.76), ("b", 9.95, 11.5), ("c", 10.0, 10.03)]
    (one,) = with_silences([Injected(10.0, "kill verify", 0.0, 1.6, 1.7, heard_s=6.0)], before + spanning + after)
    assert one.silences_s == (0.03, 1.55, 1.77) and one.longest_stall_s == 1.77


def test_what_happens_between_two_faults_belongs_to_none() -> None:
    first = Injected(10.0, "kill web", 0.0, 1.0, 1.0, heard_s=4.0)
    second = Injected(40.0, "kill one of two verifiers", 5.0, 0.0, 0.5, heard_s=9.0)
    a_verifier_starts, it_stops = ("a", 20.0, 25.0), ("a", 48.5, 52.0)
    found = with_silences([first, second], [("a", 9.9, 10.9), a_verifier_starts, ("a", 39.8, 40.6), it_stops])
    assert [one.longest_stall_s for one in found] == [1.0, 0.8]


def test_the_table_has_a_row_a_fault() -> None:
    one = Injected(1.0, "kill verify", 0.0, 1.0, 1.0, 5.0, 1.77, (1.5, 1.77), WELL)
    other = replace(one, longest_stall_s=1.8, silences_s=(1.2,), ended=WELL | {"right": 4, "lost": 1})
    silent = replace(one, fault="kill beat", longest_stall_s=0.0, silences_s=())
    rows = summary([asdict(fault) for fault in (one, silent, other)])
    assert table(rows) == [
        "| fault | times | longest, s | median, s | wrong | failed | lost |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| kill verify | 2 | 1.80 | 1.50 | 0 | 0 | 1 |",
        "| kill beat | 1 | 0.00 |  | 0 | 0 | 0 |",
    ]
    assert table([]) == []
