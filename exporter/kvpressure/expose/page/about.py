"""How the page knows what it says: the sampler, the observers of streams, and signals that cannot be derived."""

from collections.abc import Iterator, Mapping

from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose.page import words
from kvpressure.expose.page.tree import Element, el, prose
from kvpressure.signals import CATALOGUE
from kvpressure.vllm import advice
from kvpressure.vllm.stream import LogFacts, TapFacts

_KNOWABLE = tuple(
    signal for signal in CATALOGUE if signal.scope == "stream" or (signal.scope == "engine" and signal.needs)
)
_METRICS = {signal.name: signal.metric for signal in CATALOGUE}
_HEADLINES = frozenset(signal.name for signal in CATALOGUE if signal.headline)
_NO_FILE = ("no file of vLLM's log is there to be followed", "see where vLLM writes it (--log.path)")
_NOT_WATCHED = ("vLLM's metrics say nothing of streams", advice.NO_OBSERVER)


def sampler_line(snapshot: Snapshot) -> str:
    """The sampler: how often, what it costs, what failed."""
    parts = [f"a sample every {snapshot.interval:.3g} s"]
    if snapshot.last_good is not None:
        parts.append(f"the last good one {words.span(snapshot.t - snapshot.last_good)} ago")
    if snapshot.took is not None:
        parts.append(f"answered in {words.seconds(snapshot.took)}")
    if snapshot.cost is not None and snapshot.interval:
        parts.append(f"costs vLLM {words.percent(snapshot.cost / snapshot.interval)} of its time")
    parts.append(f"{snapshot.samples:,} samples")
    parts.append(f"failed or skipped: {_counts(snapshot.errors)}" if snapshot.errors else "none failed")
    return ", ".join(parts)


def tap_line(tap: TapFacts | None) -> str:
    """The tap, where there is one."""
    if tap is None:
        return "off (--tap.listen)"
    parts = [f"{tap.open:,} open", f"answers {_counts(tap.responses)}" if tap.responses else "no answer yet"]
    parts += [
        f"{name}: {_counts(found)}"
        for name, found in (("refused", tap.refused), ("broken off", tap.broken), ("not timed", tap.unobserved))
        if found
    ]
    if tap.blocked >= 1.0:
        parts.append(f"clients did not read for {words.span(tap.blocked)}")
    if tap.faults:
        parts.append(f"observing failed {tap.faults:,} times")
    return ", ".join(parts)


def log_line(log: LogFacts | None) -> str:
    """The log, where one is followed."""
    if log is None:
        return "off (--log.path)"
    if not log.files:
        return "no file to follow"
    parts = [words.number_of(log.files, "file", "files"), words.number_of(log.lines, "line", "lines")]
    if log.lag is not None:
        parts.append(f"{words.seconds(max(0.0, log.lag))} behind")
    parts.append(f"{log.dropped:,} skipped")
    if log.errors:
        parts.append(f"problems: {_counts(log.errors)}")
    return ", ".join(parts)


def observers(snapshot: Snapshot) -> Element:
    """The section on sampler and observers."""
    lines = (
        ("Sampler", sampler_line(snapshot)),
        ("Tap", tap_line(snapshot.tap)),
        ("Log", log_line(snapshot.log)),
    )
    return el(
        "section",
        el("h2", "Sampler and observers", id="observers"),
        el("dl", *(part for name, line in lines for part in (el("dt", name), el("dd", *prose(line))))),
        class_="about",
        aria_labelledby="observers",
    )


def availability(snapshot: Snapshot) -> Element | None:
    """The section on signals that cannot be derived; None before vLLM's first good answer, when nobody knows."""
    if snapshot.last_good is None:
        return None
    needed, optional = _missing(snapshot)
    lacking = sum(map(len, (*needed.values(), *optional.values())))
    return el(
        "section",
        el("h2", "Signals", id="signals"),
        el("p", f"{len(_KNOWABLE) - lacking} of {len(_KNOWABLE)} available" + ("." if lacking else ": all there are.")),
        _list(needed),
        el(
            "details",
            el("summary", f"{sum(map(len, optional.values()))} that a healthy vLLM may lack"),
            _list(optional),
        )
        if optional
        else None,
        class_="about",
        aria_labelledby="signals",
    )


_Missing = dict[tuple[str, str], list[str]]


def _missing(snapshot: Snapshot) -> tuple[_Missing, _Missing]:
    """The signals that are missing, by the reason and what would enable them: those that matter, and the others."""
    needed: _Missing = {}
    optional: _Missing = {}
    for name, fields in sorted(snapshot.unavailable.items(), key=lambda item: item[0] not in _HEADLINES):
        if "streams" in fields:
            reasons = [_NO_FILE if snapshot.log is not None else _NOT_WATCHED]
        else:
            reasons = [reason for field in fields for reason in snapshot.reasons.get(field, ())]
        group = optional if snapshot.engines and all(field in advice.OPTIONAL for field in fields) else needed
        why = "; ".join(dict.fromkeys(why for why, _ in reasons))
        change = "; ".join(dict.fromkeys(change for _, change in reasons if change))
        group.setdefault((why, change), []).append(_METRICS[name])
    return needed, optional


def _list(missing: _Missing) -> Element | None:
    if not missing:
        return None
    return el("dl", *_entries(missing))


def _entries(missing: _Missing) -> Iterator[Element]:
    for (why, change), metrics in missing.items():
        yield el("dt", *(el("code", metric) for metric in metrics))
        enable = el("strong", *prose(f"{words.capital(change)}.")) if change else None
        yield el("dd", f"{words.capital(why)}. ", enable)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in sorted(counts.items()))
