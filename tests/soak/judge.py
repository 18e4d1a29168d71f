"""Whether a sidecar said anything wrong, and for how long it said nothing: scrapes against what really happened."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from .engines import OUTPUT, PROMPT
from .truth import PAUSE, Ledger

SAMPLES = 2
"""Good samples after which everything must be there again."""
PATIENCE = 16.0
"""Seconds for which a gauge may speak of the past: a sample's timeout and three intervals, at least."""
_SLACK = 0.3  # seconds between what is known here and there
_GAP_SLACK = 0.5  # seconds that a gap can gain on its way
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_COUNTED = ("_total", "_count", "_sum", "_bucket")
# What a healthy server never gives cause for.
_ZERO = (
    "kvpressure_kv_pinned_seconds_total",
    "kvpressure_kv_blocked_seconds_total",
    "kvpressure_kv_pinned_ratio",
    "kvpressure_kv_blocked_ratio",
    "kvpressure_preemptions_inferred_total",
    "kvpressure_long_gaps_per_thousand_requests",
    "kvpressure_tap_observation_faults_total",
)
_ENGINE = (
    ("kvpressure_preemptions_total", "preemptions", 1),
    ("kvpressure_requests_finished_total", "finished", 1),
    ("kvpressure_generation_tokens_total", "tokens", 1),
    ("kvpressure_request_prompt_tokens_count", "finished", 1),
    ("kvpressure_request_prompt_tokens_sum", "finished", PROMPT),
    ("kvpressure_request_output_tokens_count", "finished", 1),
    ("kvpressure_request_output_tokens_sum", "finished", OUTPUT),
)
_GAUGES = (
    ("kvpressure_kv_usage_ratio", "usage"),
    ("kvpressure_requests_running", "running"),
    ("kvpressure_requests_waiting", "waiting"),
)
_LINES = "lines of the log"
_FAILURES = "kvpressure_log_errors_total"


@dataclass(frozen=True)
class Sample:
    """One series of one scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """
    One scrape of the sidecar.

    Args:
        start: when it was asked for, on the machine's monotonic clock.
        end: when the answer was there, or it was given up.
        text: the exposition; None where there was none.
    """

    start: float
    end: float
    text: str | None

    @cached_property
    def samples(self) -> Mapping[str, Sample]:
        """Its series of kvpressure's, by their names with labels."""
        return dict(_parse(self.text or ""))

    @cached_property
    def names(self) -> frozenset[str]:
        """What is there: names of families, those of streams with their source."""
        return frozenset(_name(sample) for sample in self.samples.values())

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over the series of a name that have these labels; None where there is none."""
        values = [
            sample.value
            for sample in self.samples.values()
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else None


@dataclass(frozen=True)
class Rules:
    """
    What may happen while a fault lasts.

    Args:
        may_lack: parts of which signals may be absent: vllm, tap, log, or all, where no scrape succeeds.
        loses: observers that cannot see everything, by no fault of theirs: tap, log.
        lingers: observers that cannot see who is gone, until it is over.
        lag: seconds by which the sidecar may be late.
        turns_away: whether requests of users may fail.
    """

    may_lack: frozenset[str] = frozenset()
    loses: frozenset[str] = frozenset()
    lingers: frozenset[str] = frozenset()
    lag: float = 3.0
    turns_away: bool = False


@dataclass(frozen=True)
class Period:
    """From before a fault until after it, on the machine's monotonic clock."""

    began: float
    released: float
    ended: float


@dataclass
class Outcome:
    """
    What came of one fault.

    Args:
        absent: seconds of absence, by what was absent.
        wrong: a sentence for everything wrong, each once, with how often it was seen.
        back: seconds from the end of the fault until everything was there; None where it was not.
        samples: good samples of vLLM that had been given when something was still absent.
    """

    absent: Mapping[str, float] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    back: float | None = None
    samples: int = 0


TIMELY = ("is under what was read", "was absent for no reason", "samples went by", "_gap_max_seconds by tap is over")
"""Parts of the sentences that say more of the machine than of the sidecar where the machine is busy with others."""


def whole(scrape: Scrape, names: frozenset[str]) -> bool:
    """Whether a scrape has all of these, and vLLM is up."""
    return names <= scrape.names and scrape.total("kvpressure_up") == 1


class Judge:
    """
    Judges one lane.

    Args:
        scrapes: all of them so far.
        standin: what happened, as the stand-in knows it.
        users: the same, as each group of users saw it.
        before: who judged the lane's time before this; what was lost then stays lost.
    """

    def __init__(
        self, scrapes: Sequence[Scrape], standin: Ledger, users: Sequence[Ledger], before: "Judge | None" = None
    ) -> None:
        self._scrapes = scrapes
        self._standin = standin
        self._users = users
        self._debt: dict[str, float] = before._debt if before else {}
        """What is missing of each counter of streams because it could not be seen."""
        self._lingering: set[str] = before._lingering if before else set()
        """Observers that may have missed the end of a stream, which then is open until it is forgotten."""

    def judge(self, period: Period, rules: Rules) -> Outcome:
        """
        What came of a fault. Faults of a lane must be judged in their order.

        Args:
            period: when it was.
            rules: what was allowed.
        """
        before = [scrape for scrape in self._scrapes if scrape.end <= period.began and scrape.text is not None]
        seen = [scrape for scrape in self._scrapes if period.began < scrape.end and scrape.start <= period.ended]
        if not before or not seen:
            return Outcome(wrong=Counter(["nothing was scraped"]))
        baseline = before[-1]
        outcome = Outcome(absent=_absent(baseline.names, seen))
        self._return(period, baseline.names, seen, outcome)
        wrong = outcome.wrong
        unexplained = sorted(name for name in outcome.absent if not {_part(name), "all"} & rules.may_lack)
        if unexplained:
            more = f" (and {len(unexplained) - 1} more)" if len(unexplained) > 1 else ""
            wrong[f"{unexplained[0]}{more} was absent for no reason"] += 1
        if outcome.back is None:
            wrong["not everything came back"] += 1
        elif outcome.samples >= SAMPLES and rules.may_lack & {"vllm", "all"}:
            wrong[f"{outcome.samples} samples went by until everything was back"] += 1
        wrong.update(self._served(period, rules))
        self._lingering |= rules.loses
        last: Scrape = baseline
        for scrape in seen:
            if scrape.text is None:
                continue
            # A machine that keeps the stand-in from its work does that to the sidecar as well.
            held = self._standin.held_up(scrape.start - PATIENCE, scrape.end)
            allowed = replace(rules, lag=rules.lag + 2 * held)
            wrong.update(_fell(last, scrape))
            wrong.update(self._engines(scrape, allowed.lag))
            wrong.update(self._streams(scrape, allowed))
            wrong.update(_impossible(scrape))
            last = scrape
        self._note_debt(last, rules)
        return outcome

    def _return(self, period: Period, names: frozenset[str], seen: Sequence[Scrape], outcome: Outcome) -> None:
        after = [scrape for scrape in seen if scrape.start >= period.released]
        good = next((scrape for scrape in after if whole(scrape, names)), None)
        if good is None:
            return
        outcome.back = good.end - period.released
        bad = [scrape for scrape in after if scrape.start < good.start]
        if bad:
            known = self._standin.at(bad[-1].start - _SLACK, "answered")
            outcome.samples = max(0, int(known - self._standin.at(period.released, "answered")))

    def _served(self, period: Period, rules: Rules) -> Iterator[str]:
        """Users get their streams through the tap, and none is turned away for no reason."""

        def gained(name: str) -> float:
            return sum(user.after(period.ended, name) - user.at(period.began, name) for user in self._users)

        if self._users and not gained("stream/gaps"):
            yield "users got nothing through the tap"
        if not rules.turns_away and (failed := gained("failed")):
            yield f"{failed:.0f} requests of users failed"

    def _engines(self, scrape: Scrape, lag: float) -> Iterator[str]:
        """Counters are at least what was read, at most what happened; gauges are what was held."""
        truth = self._standin
        for key in {name.split("/", 1)[1].rpartition("/")[0] for name in truth.names("happened/")}:
            model, _, number = key.partition("/")
            labels = {"model_name": model, "engine": number}
            for metric, name, size in _ENGINE:
                value = scrape.total(metric, **labels)
                most = size * truth.after(scrape.end, f"happened/{key}/{name}")
                least = size * truth.at(scrape.start - lag, f"exposed/{key}/{name}")
                yield from _bounds(metric, value, least, most)
            resets = scrape.total("kvpressure_engine_resets_total", **labels)
            yield from _bounds(
                "kvpressure_engine_resets_total", resets, 0, truth.after(scrape.end, f"happened/{key}/resets")
            )
            for metric, name in _GAUGES:
                held = truth.span(scrape.start - PATIENCE - lag, scrape.end, f"gauge/{key}/{name}")
                if held is not None:
                    yield from _bounds(metric, scrape.total(metric, **labels), *held)

    def _streams(self, scrape: Scrape, rules: Rules) -> Iterator[str]:
        """The same of streams: at least what users saw for sure, at most what left the stand-in."""
        for name, (value, least, most) in self._stream_counters(scrape, rules.lag).items():
            source = "log" if name.endswith("log") else "tap"
            owed = least if source in rules.loses else self._debt.get(name, 0.0)
            yield from _bounds(name, value, least - owed, most)
        for source in ("tap", "log"):
            sides = [self._standin, *(self._users if source == "tap" else ())]
            since = scrape.start - PAUSE - rules.lag
            for metric, name in (("kvpressure_requests_streaming", "open"), ("kvpressure_requests_pausing", "silent")):
                if name == "open" and source in rules.lingers | self._lingering:
                    continue
                held = [span[1] for side in sides if (span := side.span(since, scrape.end, f"stream/{name}"))]
                most = held[0] + (sum(held[1:]) if name == "silent" else 0.0) if held else 0.0
                yield from _bounds(f"{metric} by {source}", scrape.total(metric, source=source), 0, most)
            slack = _GAP_SLACK + 2 * self._standin.held_up(0.0, scrape.end)
            longest = max(side.after(scrape.end, "stream/longest") for side in sides) + slack
            for sample in scrape.samples.values():
                if sample.name == "kvpressure_inter_token_gap_max_seconds" and sample.labels["source"] == source:
                    yield from _bounds(f"{sample.name} by {source}", sample.value, 0, longest)

    def _stream_counters(self, scrape: Scrape, lag: float) -> dict[str, tuple[float | None, float, float]]:
        """Of each counter its value, the least and the most that it can be."""
        standin, users = self._standin, self._users
        then, now = scrape.start - lag, scrape.end

        def asked(name: str, t: float) -> float:
            return sum(each.at(t, f"stream/{name}") for each in users)

        def most(name: str) -> float:
            return standin.after(now, f"stream/{name}")

        late = sum(each.after(now, "stream/maybe") + each.after(now, "stream/ends") for each in users)
        found: dict[str, tuple[float | None, float, float]] = {}
        for source in ("tap", "log"):
            tap = source == "tap"

            def least(name: str, *, tap: bool = tap) -> float:
                return (
                    min(asked(name, then), standin.at(then, f"stream/{name}"))
                    if tap
                    else standin.at(then, f"stream/{name}")
                )

            for metric, name, extra in (
                ("kvpressure_requests_streamed_total", "opened", 0.0),
                ("kvpressure_requests_paused_total", "sure", most("maybe") - most("sure")),
                ("kvpressure_inter_token_gap_seconds_count", "gaps", most("ends")),
            ):
                bound = most(name) + extra + (late if tap and name != "opened" else 0.0)
                found[f"{metric} by {source}"] = (scrape.total(metric, source=source), least(name), bound)
        read = scrape.total("kvpressure_log_lines_total")
        lines = None if read is None else read + (scrape.total("kvpressure_log_dropped_lines_total") or 0.0)
        found[_LINES] = (lines, standin.at(then, "log/lines"), standin.after(now, "log/lines"))
        return found

    def _note_debt(self, scrape: Scrape, rules: Rules) -> None:
        for name, (value, least, _) in self._stream_counters(scrape, 0.0).items():
            # Lines that are passed over are counted: all of them must be there in the end.
            if name != _LINES and ("log" if name.endswith("log") else "tap") in rules.loses and value is not None:
                self._debt[name] = max(self._debt.get(name, 0.0), least - value)


def _absent(names: frozenset[str], scrapes: Sequence[Scrape]) -> dict[str, float]:
    """Seconds for which each of the names was absent: from a scrape without it to the next one."""
    absent: dict[str, float] = {}
    for number, scrape in enumerate(scrapes):
        until = scrapes[number + 1].start if number + 1 < len(scrapes) else scrape.end
        for name in names - scrape.names:
            absent[name] = absent.get(name, 0.0) + until - scrape.start
    return absent


def _fell(before: Scrape, now: Scrape) -> Iterator[str]:
    """A counter neither goes down nor away."""
    for series, sample in before.samples.items():
        if not sample.name.endswith(_COUNTED):
            continue
        later = now.samples.get(series)
        if later is None:
            yield f"{sample.name} went away"
        elif later.value < sample.value:
            yield f"{sample.name} went down"


def _impossible(scrape: Scrape) -> Iterator[str]:
    """What a healthy server never gives cause for, and what says that kvpressure itself failed."""
    for sample in scrape.samples.values():
        if sample.name in _ZERO and sample.value:
            yield f"{sample.name} is not 0"
        if sample.name.endswith("_ratio") and not 0 <= sample.value <= 1:
            yield f"{sample.name} is not a share"
        if sample.name == _FAILURES and sample.labels.get("reason") == "fault" and sample.value:
            yield "kvpressure failed to read the log"


def _bounds(name: str, value: float | None, least: float, most: float) -> Iterator[str]:
    """A value that is there lies between these."""
    if value is None:
        return
    rounding = 1e-6 * max(1.0, abs(value))
    if value > most + rounding:
        yield f"{name} is over what happened"
    if value < least - rounding:
        yield f"{name} is under what was read"


def _part(name: str) -> str:
    """The part of the sidecar that a signal comes from."""
    if name.endswith(" by tap") or name.startswith("kvpressure_tap_"):
        return "tap"
    if name.endswith(" by log") or name.startswith("kvpressure_log_"):
        return "log"
    return "vllm"


def _name(sample: Sample) -> str:
    source = sample.labels.get("source")
    return f"{sample.name} by {source}" if source else sample.name


def _parse(text: str) -> Iterator[tuple[str, Sample]]:
    for line in text.splitlines():
        found = _LINE.match(line) if line.startswith("kvpressure_") else None
        if found:
            labels = dict(_LABEL.findall(found[2] or ""))
            yield line.rpartition(" ")[0], Sample(found[1], labels, float(found[3]))
