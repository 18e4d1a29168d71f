"""The page as a tree: what it says of each state, and that nothing from outside gets into its markup."""

import dataclasses
import re
from pathlib import Path

import pytest

from kvpressure import runbooks
from kvpressure.config import Config
from kvpressure.derive.gaps import Histogram
from kvpressure.derive.snapshot import EngineSnapshot, Snapshot, StreamSnapshot, StreamWindow, WindowSnapshot
from kvpressure.derive.target import Target
from kvpressure.expose.page import about, steps
from kvpressure.expose.page.tree import html
from kvpressure.expose.page.view import Memory, view
from kvpressure.vllm.stream import LogFacts, TapFacts

RUNBOOKS = Path(__file__).parents[1] / "alerts" / "runbooks"
HOSTILE = '</p><script src="//x">alert(1)</script>\u202e"\'&${main}$title'
TIMES = "\N{MULTIPLICATION SIGN}"
NOTHING = Histogram((), (), 0.0)


def engine(number=0, **given):
    """An engine of which every window says something."""
    windows = tuple(WindowSnapshot(label, 192.0, 0.8, 0.5, 0.114, 31.0) for label in ("1m", "5m", "15m"))
    values = {"verdict": "healthy", "windows": windows, "running": 9.0, "waiting": 14.0, "kv_usage": 0.99} | given
    return EngineSnapshot("m", str(number), "V1", "calm", **values)


def streams(model="m", source="tap", ratio=0.38):
    """The streams of a model, a share of which paused."""
    windows = tuple(StreamWindow(label, 100, 38, ratio, 0.05, 3.0) for label in ("1m", "5m", "15m"))
    return StreamSnapshot(model, source, 100, 38, 0, 5, 7, NOTHING, NOTHING, windows=windows)


def page(snapshot):
    """The page of a snapshot, as HTML and as text."""
    memory = Memory()
    memory.record(snapshot)
    text = html(view(snapshot, memory, Config()).main)
    return text, re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", text).replace("\N{NO-BREAK SPACE}", " "))


def up(*engines, **given):
    return Snapshot(1e9, up=True, engines=engines, last_good=1e9, interval=1.0, **given)


@pytest.mark.parametrize(
    ("snapshot", "title", "says"),
    [
        (Snapshot(1e9, up=None), "Waiting for the first sample", "Waiting for the first sample"),
        (
            Snapshot(1e9, up=False, errors={"refused": 12, "timeout": 1}),
            "vLLM does not answer",
            "It has not answered since the exporter started. Failed samples so far: refused 12, timeout 1.",
        ),
        (
            dataclasses.replace(up(engine(verdict="unknown")), t=1e9 + 75, up=False, errors={"refused": 12}),
            "vLLM does not answer",
            "The last good answer is 1 min old. Failed samples so far: refused 12.",
        ),
        (up(engine()), "Healthy", "m , engine 0"),
        (up(engine(), engine(1)), f"2 {TIMES} Healthy", "m , engine 1"),
    ],
)
def test_states(snapshot, title, says):
    """Each state is said first, in the window's title and on the page."""
    memory = Memory()
    assert f"{title} · kvpressure" == view(snapshot, memory, Config()).title.replace("\N{NO-BREAK SPACE}", " ")
    assert says in page(snapshot)[1]


def test_not_vllm():
    """Where an answer has no engine in it, the page says why and what to change."""
    target = Target(Config())
    target.observe(1e9, "up 1\n", 0.01)

    text = page(target.snapshot(1e9))[1]
    assert "No engine seen" in text
    assert "--disable-log-stats" in text


def test_engine_with_streams():
    """What the users of an engine's model see is told with the engine, by who sees most, the other beside it."""
    _, text = page(up(engine(), streams=(streams(), streams(source="log", ratio=0.35))))

    assert "Requests paused 38 % of requests" in text
    assert "7 now, by the tap, the log says 35 %" in text
    assert "longest 3.00 s, by the tap" in text
    assert "What users see" not in text
    assert "Gaps over a second" not in text


def test_engine_without_streams():
    """Where nobody watches streams, long gaps of vLLM's histogram stand in their place, and say so."""
    _, text = page(up(engine()))

    assert "Gaps over a second 31 per 1000 requests" in text
    assert "Requests paused" not in text


def test_streams_of_several_engines():
    """Nobody knows the rank of a stream, so of several engines of a model it is told once; old models not at all."""
    gone = dataclasses.replace(streams("old"), open=0, windows=(StreamWindow("1m", 0, 0, None, None, None),))

    found, text = page(up(engine(), engine(1), streams=(streams(), gone, streams("other"))))

    assert 1 == text.count("m , all engines What users see")
    assert 1 == text.count("other , all engines")
    assert "old" not in text
    assert 2 == found.count('id="users-')


def test_many_engines():
    """Many engines are folded, those in need are named first, and two of them are open."""
    engines = [engine(n, verdict="kv_memory" if n % 4 == 1 else "healthy") for n in range(16)]
    engines = [dataclasses.replace(e, evidence=None, why_unknown="") for e in engines]

    found, text = page(up(*engines))

    assert f"4 {TIMES} KV cache too small · 12 {TIMES} Healthy" in text
    assert 16 == found.count("<details")
    assert 2 == found.count('open=""')
    assert [f"engine-{n}" for n in (1, 5, 9, 13)] == re.findall('href="#([^"]*)"', found)
    assert len(re.findall('id="([^"]*)"', found)) == len(set(re.findall('id="([^"]*)"', found)))


def test_hostile_names():
    """Names of models and engines, whatever they hold, are text."""
    hostile = dataclasses.replace(engine(), model_name=HOSTILE, engine=HOSTILE)

    found, _ = page(up(hostile, streams=(streams(HOSTILE), streams(HOSTILE + "2"))))

    assert "<script" not in found
    assert "&lt;script src=" in found
    assert set(re.findall("<([a-z0-9]+)", found)) <= {
        *("main", "section", "article", "header", "h2", "h3", "p", "span", "bdi", "ul", "li", "data", "svg", "path"),
        *("dl", "dt", "dd", "div", "b", "a", "code", "strong", "ol"),
    }


def test_signals_that_are_missing():
    """Each missing signal is named with why and what would enable it; those that are optional are set apart."""
    fields = {
        "preemptions_total": ("preemptions",),
        "regime": ("preemptions",),
        "kv_offload_bytes_total": ("offload_loaded_bytes", "offload_stored_bytes"),
        "requests_paused_total": ("streams",),
    }
    reasons = {
        "preemptions": (("this version of vLLM does not expose it", "upgrade vLLM"),),
        "offload_loaded_bytes": (("no KV offloading is configured", ""),),
        "offload_stored_bytes": (("no KV offloading is configured", ""),),
    }
    _, text = page(up(engine(), unavailable=fields, reasons=reasons))

    assert "34 of 38 available." in text
    assert (
        "kvpressure_preemptions_total kvpressure_regime This version of vLLM does not expose it. Upgrade vLLM." in text
    )
    assert "vLLM's metrics say nothing of streams. Comes with the tap ( --tap.listen )" in text
    assert "1 that a healthy vLLM may lack kvpressure_kv_offload_bytes_total No KV offloading is configured." in text
    log = up(engine(), unavailable=fields, reasons=reasons, log=LogFacts())
    assert "No file of vLLM's log is there to be followed." in page(log)[1]
    assert "38 of 38 available: all there are." in page(up(engine()))[1]
    assert "available" not in page(Snapshot(1e9, up=None))[1]


def test_observers():
    """Sampler, tap and log say in a line each whether they do their work."""
    tap = TapFacts(
        open=40,
        responses={"2xx": 9, "5xx": 1},
        refused={"busy": 2},
        broken={"client": 3},
        faults=4,
        unobserved={"compressed": 5},
        blocked=61.0,
    )
    log = LogFacts(files=1, lines=12345, dropped=6, lag=0.2, errors={"unreadable": 7})
    snapshot = up(engine(), samples=1234, took=0.014, cost=0.012, errors={"timeout": 2}, tap=tap, log=log)
    plain = {
        "sampler": about.sampler_line(snapshot),
        "tap": about.tap_line(tap),
        "log": about.log_line(log),
    }

    assert {name: line.replace("\N{NO-BREAK SPACE}", " ") for name, line in plain.items()} == {
        "sampler": "a sample every 1 s, the last good one 0 s ago, answered in 14 ms, costs vLLM 1 % of its time, "
        "1,234 samples, failed or skipped: timeout 2",
        "tap": "40 open, answers 2xx 9, 5xx 1, refused: busy 2, broken off: client 3, not timed: compressed 5, "
        "clients did not read for 1 min, observing failed 4 times",
        "log": "1 file, 12,345 lines, 200 ms behind, 6 skipped, problems: unreadable 7",
    }
    assert ("off (--tap.listen)", "off (--log.path)") == (about.tap_line(None), about.log_line(None))
    assert "no file to follow" == about.log_line(LogFacts())
    assert "0 open, no answer yet" == about.tap_line(TapFacts())


def test_runbooks_exist():
    """Every runbook that the page leads to is in the repository."""
    for alert in steps.RUNBOOKS:
        assert (RUNBOOKS / f"{alert}.md").is_file()
        assert runbooks.url(alert).endswith(f"/alerts/runbooks/{alert}.md")
