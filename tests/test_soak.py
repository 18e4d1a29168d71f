"""The soak's own judgement, on made-up scrapes; the soak itself takes minutes and is `make soak`."""

import io
import json
import os
import random
import re
from pathlib import Path

import pytest
import yaml
from soak import faults, judge, machine, report, stage
from soak.engines import COUNTERS, Engine, Seen, exposition
from soak.judge import Judge, Period, Rules, Scrape, whole
from soak.requestlog import RequestLog
from soak.standin import _GARBAGE, _cut
from soak.truth import Ledger, StreamWatch, write

from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.signals import CATALOGUE
from kvpressure.vllm.logs import LogReader
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import ExpositionError

PERIOD = Period(began=10.5, released=13.5, ended=20.0)
VLLM = frozenset({"vllm"})


def said(finished=100, *, usage=0.5, up=1, more=""):
    """What a sidecar says of one engine."""
    labels = 'model_name="m",engine="0"'
    return (
        f"kvpressure_up {up}\n"
        f'kvpressure_requests_finished_total{{{labels},finished_reason="length"}} {finished}\n'
        f"kvpressure_kv_usage_ratio{{{labels}}} {usage}\n{more}"
    )


def streams(streamed=0, paused=0, source="log"):
    """What a sidecar says of streams."""
    return (
        f'kvpressure_requests_streamed_total{{model_name="m",source="{source}"}} {streamed}\n'
        f'kvpressure_requests_paused_total{{model_name="m",source="{source}"}} {paused}\n'
    )


def scraped(changes, default=None):
    """A scrape a second from 5 to 20, with other texts at some seconds."""
    default = said() if default is None else default
    return [Scrape(float(t), t + 0.1, changes.get(t, default)) for t in range(5, 21)]


def happened(count=100, read=100, usage=0.5, **more):
    """A truth that never changes, but for a good sample every second."""
    rows = [
        {
            "t": t / 10,
            "happened/m/0/finished": count,
            "exposed/m/0/finished": read,
            "gauge/m/0/usage": usage,
            "answered": t // 10,
            **{f"stream/{name}": value for name, value in more.items()},
        }
        for t in range(300)
    ]
    return Ledger(rows)


def outcome(changes, rules=None, truth=None, users=(), default=None):
    """The judgement of one period."""
    judge = Judge(scraped(changes, default), truth or happened(), list(users))
    return judge.judge(PERIOD, rules or Rules())


# --- what really happened -------------------------------------------------------------------------------------------


def test_a_pause_counts_while_it_lasts():
    """A gap around the threshold is in doubt; one clearly over it is sure, once, before a chunk has ended it."""
    watch = StreamWatch()
    watch.chunk(1, 0.0)
    watch.chunk(2, 0.0)
    watch.chunk(2, 0.9)
    watch.tick(1.5)

    assert (2, 1, 2) == (watch.opened, watch.sure, watch.maybe)
    # The second one was silent since somebody asked, and then is not.
    assert [2, 1] == [watch.totals(1.5)["silent"], watch.totals(1.5)["silent"]]

    watch.tick(2.5)
    watch.end(1, 2.5)

    assert (2, 2, 1, 2.5) == (watch.sure, watch.maybe, watch.ends, watch.longest)


def test_a_stream_that_flows_never_pauses():
    """Gaps well under the threshold count as gaps alone, however many there are."""
    watch = StreamWatch()
    for number in range(20):
        watch.chunk(1, number / 2)
    watch.end(1, 9.6)

    assert (1, 19, 0, 0) == (watch.opened, watch.gaps, watch.maybe, watch.ends)


def test_a_ledger_tells_what_was_known_before_and_after():
    """`at` never looks ahead, `after` never looks back, and a span has the rows around it."""
    ledger = Ledger([{"t": 1.0, "n": 1.0}, {"t": 2.0, "n": 5.0}, {"t": 3.0, "n": 2.0}])

    assert [0.0, 1.0, 5.0] == [ledger.at(t, "n") for t in (0.5, 1.9, 2.0)]
    assert [1.0, 5.0, 2.0, 2.0] == [ledger.after(t, "n") for t in (0.5, 1.1, 2.1, 9.0)]
    assert (2.0, 5.0) == ledger.span(2.1, 2.2, "n")
    assert ledger.span(2.1, 2.2, "x") is None


def test_a_writer_that_was_held_up_is_seen():
    """Rows come every tenth of a second; where they do not, nobody on that machine can be asked to be in time."""
    ledger = Ledger({"t": t} for t in (0.0, 0.1, 0.2, 3.2, 3.3))

    assert [0.0, pytest.approx(2.8)] == [ledger.held_up(0.0, 0.15), ledger.held_up(1.0, 2.0)]


def test_rows_are_read_as_far_as_they_are_whole(tmp_path):
    """A row that is being written is not read."""
    out = io.StringIO()
    write(out, 1.0, {"n": 2.0})
    path = tmp_path / "rows"
    path.write_text(out.getvalue() + '{"t": 2.0', encoding="utf-8")

    assert [{"t": 1.0, "n": 2.0}] == list(Ledger.read(path).rows)


def test_a_reader_counts_as_promql_does():
    """The first value is where counting begins, and after a fall the new value is the gain."""
    seen = Seen()
    for value in (50.0, 60.0, 7.0, 9.0):
        seen.add(value)

    assert 10 + 7 + 2 == seen.total


# --- the stand-in ---------------------------------------------------------------------------------------------------


def test_the_stand_in_is_read_as_a_vllm():
    """Its exposition is read whole by kvpressure's own reader, and says what its engines counted."""
    engines = [Engine("m", 0, 10), Engine("m", 1, 10)]
    for _ in range(25):
        for engine in engines:
            engine.tick(random.Random(1))

    exposed = ExpositionReader().read(exposition(engines))

    assert {} == exposed.problems
    assert {("m", "0"), ("m", "1")} == set(exposed.readings)
    reading = exposed.readings["m", "1"]
    assert (2.0, 625.0, 0.4, 0.7) == (
        reading.preemptions,
        reading.generation_tokens,
        min(0.4, reading.kv_usage),
        max(0.7, reading.kv_usage),
    )


def test_what_happened_counts_from_the_first_look():
    """What an engine counted before anybody read it is not in the truth; what it counted over a restart is."""
    engine = Engine("m", 0, 0)
    engine.tick(random.Random(1))
    assert 0 == engine.rows()["happened/m/0/finished"]

    engine.read(*engine.shown())
    engine.tick(random.Random(1))
    engine.restart({"finished": 2.0})
    engine.read(*engine.shown())

    assert 3 + 2 == engine.rows()["happened/m/0/finished"]
    assert 2 == engine.rows()["exposed/m/0/finished"]
    assert 2 == engine.counters["finished"]
    assert set(COUNTERS) == set(engine.counters)


def test_garbage_is_none_that_a_reader_takes_for_good():
    """Of the garbage, the cut one ends within a number, and none gives a counter that is lower than it was."""
    engine = Engine("m", 0, 0)
    for _ in range(90):
        engine.tick(random.Random(1))
    reader = ExpositionReader()
    text = exposition([engine])
    kept = []
    for spoil in _GARBAGE:
        try:
            readings = reader.read(spoil(text).decode("utf-8", "replace")).readings.values()
        except ExpositionError:
            continue
        kept += [reading.generation_tokens for reading in readings]

    assert set(kept) <= {None, engine.counters["tokens"]} | {value for value in kept if value != value}  # noqa: PLR0124
    assert _cut in _GARBAGE
    assert not _cut(text).endswith(b"\n")


def test_garbage_leaves_no_trace():
    """However often it comes round, with good expositions between or none, nothing is counted that did not happen."""
    engine, target, t = Engine("m", 0, 0), Target(Config()), 1.8e9
    for number in range(60):
        engine.tick(random.Random(1))
        text = exposition([engine])
        spoil = _GARBAGE[number % len(_GARBAGE)] if number % 20 >= 10 else str.encode
        t += 1.0
        target.observe(t, spoil(text).decode("utf-8", "replace"), 0.005)
    t += 1.0
    target.observe(t, exposition([engine]), 0.005)
    (found,) = target.snapshot(t).engines

    assert 0 == found.resets
    assert engine.counters["finished"] - 3.0 == found.prompt_lengths.counts[-1] == sum(found.finished.values())


def test_the_log_is_read_as_vllms(tmp_path):
    """Its lines give the events of a stream, by their runtime's stamps, over a rotation."""
    log = RequestLog(tmp_path)
    message = "Generated response chatcmpl-1 (streaming delta): output: '', finish_reason: None"
    log.line(1796022992.25, "request_logger.py:108", message)
    log.rotate()
    log.line(1796022993.5, "request_logger.py:108", message)
    log.close()
    data = (tmp_path / "0.log.1").read_bytes() + (tmp_path / "0.log").read_bytes()

    events = [event for batch in LogReader().read(data, 1796022994.0) for event in batch.events]

    assert 2 == log.lines
    assert [1796022992.25, 1796022993.5] == [event.t for event in events if event.kind == "token"]


def test_a_full_disk_loses_lines(tmp_path, monkeypatch):
    """Where only a part of a line fits, the line counts as lost."""
    log = RequestLog(tmp_path)
    real, room = os.write, [150]

    def little(number, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        done = real(number, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", little)
    log.burst(1796022992.0, 3)
    log.close()
    left = (tmp_path / "0.log").read_bytes()

    assert (left.count(b"\n"), 3 - left.count(b"\n")) == (log.lines, log.lost)
    assert 0 < log.lost < 3


# --- judging --------------------------------------------------------------------------------------------------------


def test_a_sidecar_that_says_what_happened_is_right():
    """Nothing is wrong, nothing absent, and all is there at the first scrape after the fault."""
    found = outcome({})

    assert ({}, {}, 0) == (dict(found.wrong), dict(found.absent), found.samples)
    assert pytest.approx(0.6) == found.back


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (said(101), "kvpressure_requests_finished_total is over what happened"),
        (said(99), "kvpressure_requests_finished_total went down"),
        (said(usage=0.6), "kvpressure_kv_usage_ratio is over what happened"),
        (said(usage=0.4), "kvpressure_kv_usage_ratio is under what was read"),
        (said(usage=1.5), "kvpressure_kv_usage_ratio is not a share"),
        (said(more="kvpressure_kv_pinned_seconds_total 3\n"), "kvpressure_kv_pinned_seconds_total is not 0"),
        (said(more='kvpressure_log_errors_total{reason="fault"} 1\n'), "kvpressure failed to read the log"),
        ("kvpressure_up 1\n", "kvpressure_requests_finished_total went away"),
    ],
)
def test_a_wrong_number_is_found(text, sentence):
    """Each kind of wrong number has its sentence, though it stood in a single scrape."""
    assert sentence in outcome({12: text}, Rules(VLLM)).wrong


def test_a_counter_that_missed_something_is_found():
    """A counter that stays under what was read to its end is wrong too, but may be late."""
    first = {"t": 0.0, "answered": 0, "happened/m/0/finished": 100, "exposed/m/0/finished": 100}
    later = {**first, "happened/m/0/finished": 200, "exposed/m/0/finished": 200}
    late = Ledger({**(first if t < 110 else later), "t": t / 10} for t in range(300))

    assert "kvpressure_requests_finished_total is under what was read" in outcome({}, Rules(lag=3), late).wrong
    assert {} == dict(outcome({}, Rules(lag=30), late).wrong)


def test_absence_has_a_length():
    """What is absent is told with its seconds, and is wrong only where the fault does not explain it."""
    gone = dict.fromkeys((12, 13), said(up=0).rpartition("kvpressure_kv")[0])

    allowed, not_allowed = outcome(gone, Rules(VLLM)), outcome(gone, Rules(frozenset({"log"})))

    assert {"kvpressure_kv_usage_ratio": 2.0} == dict(allowed.absent)
    assert {} == dict(allowed.wrong)
    assert ["kvpressure_kv_usage_ratio was absent for no reason"] == list(not_allowed.wrong)


def test_a_scrape_that_fails_lacks_everything():
    """Without an answer every signal is absent, which only a fault of the sidecar itself explains."""
    gone = {12: None}

    assert {1.0} == set(outcome(gone, Rules(frozenset({"all"}))).absent.values())
    assert outcome(gone, Rules(VLLM | {"log"})).wrong == {}
    assert ["kvpressure_kv_usage_ratio (and 2 more) was absent for no reason"] == list(
        outcome(gone, Rules(frozenset({"log"}))).wrong
    )


def test_a_return_takes_two_samples_at_most():
    """The samples that had been given when something was still absent are counted; a second one is too many."""
    down = said(up=0)

    soon = outcome(dict.fromkeys((12, 13, 14), down), Rules(VLLM))
    late = outcome(dict.fromkeys((12, 13, 14, 15, 16), down), Rules(VLLM))
    never = outcome(dict.fromkeys(range(12, 21), down), Rules(VLLM))

    assert (0, {}) == (soon.samples, dict(soon.wrong))
    assert ["2 samples went by until everything was back"] == list(late.wrong)
    assert (None, ["not everything came back"]) == (never.back, list(never.wrong))


def test_pauses_have_two_bounds():
    """A count of paused requests is between those that are sure and those that are in doubt."""
    truth = happened(opened=10, sure=2, maybe=3)

    def judged(paused):
        return dict(outcome({}, truth=truth, default=said(more=streams(10, paused))).wrong)

    assert {} == judged(2) == judged(3)
    assert ["kvpressure_requests_paused_total by log is under what was read"] == list(judged(1))
    assert ["kvpressure_requests_paused_total by log is over what happened"] == list(judged(4))


def test_a_tap_is_held_against_its_users():
    """What the tap did not pass on to a user it need not have counted, and a pause that a user had may be its own."""
    row = {"stream/opened": 9, "stream/maybe": 1, "stream/sure": 1}
    truth, user = happened(opened=10), Ledger([{"t": t, "stream/gaps": t, **row} for t in (0.0, 30.0)])

    def judged(streamed, paused):
        text = said(more=streams(streamed, paused, "tap"))
        return dict(outcome({}, truth=truth, users=[user], default=text).wrong)

    assert {} == judged(9, 0) == judged(10, 1)
    assert ["kvpressure_requests_streamed_total by tap is under what was read"] == list(judged(8, 0))
    assert ["kvpressure_requests_streamed_total by tap is over what happened"] == list(judged(11, 0))


def test_a_tap_that_serves_nobody_is_found():
    """Users who get nothing, or are turned away, are wrong though the tap counts what passes through it."""

    def judged(gaps, failed, rules=None):
        user = Ledger([{"t": 0.0}, {"t": 30.0, "stream/gaps": gaps, "failed": failed}])
        return dict(outcome({}, rules, users=[user]).wrong)

    assert {} == judged(5, 0) == judged(5, 3, Rules(turns_away=True))
    assert {"3 requests of users failed": 1} == judged(5, 3)
    assert {"users got nothing through the tap": 1} == judged(0, 0)


def test_what_is_judged_is_in_the_catalogue():
    """A metric that was renamed would be absent from every scrape, and nothing of it judged any more."""
    names = set(re.findall(r"kvpressure_\w+", Path(judge.__file__).read_text(encoding="utf-8"))) - {"kvpressure_"}
    known = {signal.metric for signal in CATALOGUE}

    assert len(names) > 20
    assert [] == sorted(name for name in names if not name.endswith("_") and known.isdisjoint({name, *_families(name)}))


def _families(name):
    """What a series may belong to."""
    return {name.removesuffix(end) for end in ("_count", "_sum", "_bucket")}


def test_what_was_lost_once_is_not_asked_for_again():
    """Where an observer could not see all, it may lack that much for good, and no more."""
    truth = happened(opened=10)
    scrapes = scraped({}, said(more=streams(7)))
    judge = Judge(scrapes, truth, [])

    assert {} == dict(judge.judge(PERIOD, Rules(loses=frozenset({"log"}))).wrong)
    assert {} == dict(judge.judge(PERIOD, Rules()).wrong)
    assert {} == dict(Judge(scrapes, truth, [], judge).judge(PERIOD, Rules()).wrong)
    assert ["kvpressure_requests_streamed_total by log is under what was read"] == list(
        Judge(scrapes, truth, []).judge(PERIOD, Rules()).wrong
    )


def test_nothing_scraped_is_nothing_proven():
    """A period without a scrape is no success."""
    assert {"nothing was scraped": 1} == dict(Judge([], happened(), []).judge(PERIOD, Rules()).wrong)


def test_whole_is_with_vllm_up():
    """All names there is not enough where the last sample failed."""
    names = frozenset({"kvpressure_up"})

    assert [True, False, False] == [whole(Scrape(0, 1, text), names) for text in (said(), said(up=0), None)]


# --- memory, machine and page ---------------------------------------------------------------------------------------


def test_memory_that_grows_has_a_slope():
    """The line begins where the sidecar holds all that it ever keeps; with too few rounds nothing is said."""
    grown = [(600.0 * n, 50e6 + (2 * report.MIB if n > 1 else 0) + report.MIB * 0.05 * n) for n in range(10)]

    assert pytest.approx(0.3) == report.slope(grown)
    assert pytest.approx(0.0) == report.slope([(t, 50e6) for t, _ in grown])
    assert report.slope(grown[:5]) is None


def test_the_limit_of_memory_is_the_manifests():
    """What the soak allows the sidecar is what its container is given where it has the tap."""
    tap = (machine.ROOT / "deploy/kubernetes/parts/tap/kustomization.yaml").read_text(encoding="utf-8")

    assert f"memory: {stage.MEMORY // 2**20}Mi" in tap
    assert yaml.safe_load(tap)


def test_every_fault_has_a_place():
    """Names are unique, lanes and needs are known, and only alerts that exist are expected."""
    every = list(faults.faults())
    alerts = (machine.ROOT / "alerts" / "kvpressure.alerts.yml").read_text(encoding="utf-8")

    assert len(every) == len({fault.name for fault in every})
    assert {fault.lane for fault in every} == set(faults.LANES)
    assert all(f"alert: {name}\n" in alerts for fault in every for name in fault.pages)
    assert all(isinstance(machine.missing(fault.needs), str) for fault in every)


def test_the_page_has_the_results_that_are_kept():
    """The table of docs/reliability.md is that of the kept results, and they are of the faults that there are."""
    lanes, hours = report.load(), report.load(report.HOURS)
    page = report.PAGE.read_text(encoding="utf-8")

    assert report.filled(page, lanes, hours) == page
    for kept in (lanes, hours):
        assert {row.fault for lane in kept for row in lane.rows} == {fault.name for fault in faults.faults()}


def test_a_lane_says_of_pages_what_it_can():
    """A run that is shorter than what alerts wait for says nothing of pages at a usual scrape interval."""
    short, long, paged = report.Lane("l"), report.Lane("l", 90.0, [], rounds=9), report.Lane("l", 90.0, ["A"], rounds=9)

    said = report.filled(
        "<!-- generated: soak -->\n<!-- end -->\n<!-- generated: soak-hours -->\n<!-- end -->\n", [short], [long, paged]
    )

    assert "* Lane l: once through, 0 min.\n" in said
    assert "* Lane l: 9 times through, 90 min, scraped every 15 s nothing paged.\n" in said
    assert "scraped every 15 s A paged" in said
    assert [False, False, True] == [short.failed, long.failed, paged.failed]


def test_a_row_tells_what_went_wrong():
    """A failure and a page that must not be stand out in the table, and what was not tried says why."""
    row = report.Row(
        "f",
        5.0,
        {"kvpressure_a": 3.2, "kvpressure_b": 2.9},
        {"x is wrong": 2},
        None,
        ["A", "B"],
        ["B"],
        (2.0**20, 2.0**21),
    )

    assert (
        "f",
        "5 s",
        "`a` and 1 more: 3 s",
        "not",
        "A, B (FALSE)",
        "1.0 → 2.0 MiB",
        "x is wrong; B paged",
    ) == report.cells(row)
    assert row.failed
    assert "times were not judged" in report.cells(report.Row("f", busy=2.0))[-1]
    assert "needs root" in report.cells(report.Row("f", skipped="needs root"))
    assert json.loads(json.dumps(row.absent)) == row.absent
