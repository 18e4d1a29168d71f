"""
The pictures of the report: bars by change, and the curve over ``--max-num-seqs``.

They are stretched to the width of their place, and letters are not: whatever stands beside or along them is told in
shares of the width, and only the lines themselves are drawn in a part that is stretched.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvpressure.advise import report_words as words
from kvpressure.advise.advice import Advice, Band, Change, Point, Settings
from kvpressure.advise.report import label
from kvpressure.expose.page.tree import Element, el, prose
from kvpressure.expose.page.words import count, seconds

_BAR = 16  # pixels
_HEIGHT = 150  # of a panel's plot, in pixels
_FOOT = 24  # below it, for the settings
_HEAD = 8  # above it, for half of the topmost line's number
_LEFT, _RIGHT = 3.0, 97.0  # where the first and the last setting stand, in percent of the width
_NARROWEST = 270.0  # pixels: on a narrower phone letterings may touch
_LETTER = 8.0  # pixels across one digit, at the most
_STRETCHED = 1000  # units across the part that is stretched
_ROOM = 1.1  # the scale goes on above the highest value
_LINES = 30  # pixels between two lines of the grid, at the least
_MARGIN = "-48"  # pixels: the numbers of the lines stand beside the plot, in the margin that the style gives it
_ROUND = (5.0, 2.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Panel:
    """
    One of the two plots over the settings.

    Args:
        name: what it shows.
        bands: one for each point.
        target: the line that may not be crossed; None where there is none.
        words: a value as text.
        least: the top of the scale where all is lower.
    """

    name: str
    bands: Sequence[Band]
    target: float | None
    words: Callable[[float | None], str]
    least: float


def bars(advice: Advice) -> Element | None:
    """Preemptions per thousand requests by change, with the target's line; None where no change has an outcome."""
    shown = [(place, change) for place, change in enumerate(advice.changes) if change.outcome]
    if not shown:
        return None
    target = advice.target_per_thousand
    tops = [_finite(change.outcome.per_thousand.high) for _, change in shown if change.outcome]
    top = max(*tops, 1.0, (target or 0.0) * _ROOM)
    said = "" if target is None else f" Dashed: the target, {count(target)}."
    return el(
        "figure",
        el(
            "figcaption",
            "Preemptions per 1,000 requests, by change",
            el(
                "small",
                f"Simulated. Bar: median of the seeds; thin line: 10th to 90th percentile.{said}",
            ),
        ),
        el("ul", *(_bar(place, change, top, target) for place, change in shown), role="list"),
        class_="bars",
    )


def curve(advice: Advice) -> Element | None:
    """Preemptions and TTFT over the settings, with the band that keeps both targets; None where there is none."""
    settings = advice.settings
    if settings is None or not settings.points:
        return None
    points = settings.points
    panels = (
        _Panel(
            "Preemptions per 1,000 requests",
            [point.outcome.per_thousand for point in points],
            advice.target_per_thousand,
            count,
            10.0,
        ),
        _Panel("TTFT p95", [point.outcome.ttft_p95 for point in points], advice.target_ttft, seconds, 0.1),
    )
    return el(
        "figure",
        el(
            "figcaption",
            *prose("What --max-num-seqs trades"),
            el("small", "Simulated. From left to right the setting; upwards a scale that gives low values more room."),
        ),
        *(_panel(panel, settings) for panel in panels),
        _key(advice),
        class_="curve",
    )


def _bar(place: int, change: Change, top: float, target: float | None) -> Element | None:
    if change.outcome is None:
        return None
    of = change.outcome.per_thousand
    low, middle, high = (100.0 * _finite(value) / top for value in (of.low, of.middle, of.high))
    text, spread = words.band(of, count)
    said = f"{text} ({spread})" if spread else text
    middle_line = f"{_BAR / 2:g}"
    return el(
        "li",
        el("p", el("span", *prose(f"{label(place)}. {change.title}")), el("span", said)),
        el(
            "svg",
            el("rect", class_="track", width="100%", height=f"{_BAR}"),
            el("rect", class_="bar", width=_share(middle), height=f"{_BAR}"),
            _line("whisker", _share(low), middle_line, _share(high), middle_line) if spread else None,
            None if target is None else _upright(100.0 * target / top, _BAR),
            class_="plot",
            height=f"{_BAR}",
            aria_hidden="true",
        ),
    )


def _panel(panel: _Panel, settings: Settings) -> Element:
    points = settings.points
    places = _places([point.seqs for point in points])
    highest = max((_finite(band.high) for band in panel.bands), default=0.0)
    top = max(highest, panel.target or 0.0, panel.least) * _ROOM

    def down(value: float) -> float:
        # By the square root: targets are low, and what breaks them may be a hundred times as much.
        return _HEAD + _HEIGHT * (1.0 - math.sqrt(_finite(value) / top))

    target = "" if panel.target is None else f", target {panel.words(panel.target)} (dashed)"
    return el(
        "div",
        el("p", f"{panel.name}{target}"),
        el(
            "svg",
            _good(settings, places),
            *_grid(top, down, panel),
            el(
                "svg",
                el("path", class_="seeds", d=_ribbon(panel, places, down)),
                el("path", class_="middle", d=_path([(x, down(b.middle)) for x, b in _known(panel, places)])),
                width="100%",
                height=f"{_HEAD + _HEIGHT}",
                viewBox=f"0 0 {_STRETCHED} {_HEAD + _HEIGHT}",
                preserveAspectRatio="none",
            ),
            _target(panel, down),
            *(_dot(x, down(band.middle), point) for x, band, point in _dots(panel, places, points)),
            *_labels(points, places, settings),
            class_="plot",
            height=f"{_HEAD + _HEIGHT + _FOOT}",
            role="img",
            aria_label=_alternative(panel, settings),
        ),
        class_="panel",
    )


def _alternative(panel: _Panel, settings: Settings) -> str:
    told = "; ".join(
        f"{point.seqs:,}: {panel.words(band.middle) if math.isfinite(band.middle) else words.UNKNOWN}"
        for point, band in zip(settings.points, panel.bands, strict=True)
    )
    return f"{panel.name} by setting of --max-num-seqs. {told}"


def _places(settings: Sequence[int]) -> list[float]:
    """Where the settings stand, in percent of the width: each doubling is as far as the next."""
    logs = [math.log(max(1, seqs)) for seqs in settings]
    reach = logs[-1] - logs[0]
    if not reach:
        return [(_LEFT + _RIGHT) / 2.0] * len(logs)
    return [_LEFT + (_RIGHT - _LEFT) * (log - logs[0]) / reach for log in logs]


def _good(settings: Settings, places: Sequence[float]) -> Element | None:
    """The shade behind the good settings, half-way to their neighbours."""
    low, high = settings.low, settings.high
    inside = [
        n for n, p in enumerate(settings.points) if low is not None and high is not None and low <= p.seqs <= high
    ]
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    begin = (places[first] + places[first - 1]) / 2.0 if first else places[first] - 2.0
    end = (places[last] + places[last + 1]) / 2.0 if last + 1 < len(places) else min(100.0, places[last] + 2.0)
    return el("rect", class_="range", x=_share(begin), y=f"{_HEAD}", width=_share(end - begin), height=f"{_HEIGHT}")


def _grid(top: float, down: Callable[[float], float], panel: _Panel) -> Iterator[Element]:
    """Lines at round values, from the highest down to where they would stand too close, and one at nothing."""
    zero, above = down(0.0), float(_HEAD - _LINES)
    yield _line("grid", "0", f"{zero:.1f}", "100%", f"{zero:.1f}")
    yield el("text", "0", x=_MARGIN, y=f"{zero + 4:.1f}")
    power = 10.0 ** math.floor(math.log10(top))
    for value in (part * power / 10.0**step for step in range(6) for part in _ROUND):
        y = down(value)
        if value <= top and y - above >= _LINES and zero - y >= _LINES / 2:
            above = y
            yield _line("grid", "0", f"{y:.1f}", "100%", f"{y:.1f}")
            yield el("text", panel.words(value), x=_MARGIN, y=f"{y + 4:.1f}")


def _target(panel: _Panel, down: Callable[[float], float]) -> Element | None:
    if panel.target is None:
        return None
    y = f"{down(panel.target):.1f}"
    return _line("target", "0", y, "100%", y)


def _labels(points: Sequence[Point], places: Sequence[float], settings: Settings) -> Iterator[Element]:
    """The settings below the plot: those that end the good band first, then the ends, then what has room."""
    telling = {settings.low, settings.high} - {None}
    first = [n for n, point in enumerate(points) if point.seqs in telling]
    taken: list[int] = []
    for n in (*first, 0, len(points) - 1, *range(len(points))):
        if n not in taken and all(_apart(points, places, n, other) for other in taken):
            taken.append(n)
    for n in sorted(taken):
        text = f"{points[n].seqs:,}"
        yield el("text", text, x=_share(places[n]), y=f"{_HEAD + _HEIGHT + 19}", text_anchor="middle")


def _apart(points: Sequence[Point], places: Sequence[float], one: int, other: int) -> bool:
    """Whether the numbers of two settings do not lie on each other, on a phone either."""
    letters = (len(f"{points[one].seqs:,}") + len(f"{points[other].seqs:,}")) / 2.0 + 0.5
    return abs(places[one] - places[other]) >= 100.0 * letters * _LETTER / _NARROWEST


def _key(advice: Advice) -> Element:
    settings = advice.settings
    some = settings is not None and any(point.good for point in settings.points)
    entries = (
        ("median of the seeds", el("line", class_="middle", x1="0", y1="6", x2="22", y2="6")),
        ("10th to 90th percentile", el("rect", class_="seeds", width="22", height="12")),
        ("keeps both targets", el("rect", class_="range", width="22", height="12")) if some else None,
        ("target", el("line", class_="target", x1="0", y1="6", x2="22", y2="6")),
    )
    return el(
        "ul",
        *(el("li", el("svg", drawn, class_="plot", aria_hidden="true"), text) for text, drawn in filter(None, entries)),
        class_="key",
        role="list",
    )


def _known(panel: _Panel, places: Sequence[float]) -> Iterator[tuple[float, Band]]:
    for place, of in zip(places, panel.bands, strict=True):
        if math.isfinite(of.middle):
            yield place, of


def _dots(panel: _Panel, places: Sequence[float], points: Sequence[Point]) -> Iterator[tuple[float, Band, Point]]:
    for place, of, point in zip(places, panel.bands, points, strict=True):
        if math.isfinite(of.middle):
            yield place, of, point


def _ribbon(panel: _Panel, places: Sequence[float], down: Callable[[float], float]) -> str:
    known = list(_known(panel, places))
    there = [(x, down(of.high)) for x, of in known]
    back = [(x, down(of.low)) for x, of in reversed(known)]
    return _path(there + back) + "Z" if known else ""


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A path through points: x in percent of the width, y in pixels."""
    return "".join(f"{'L' if n else 'M'}{x * _STRETCHED / 100.0:.1f} {y:.1f}" for n, (x, y) in enumerate(points))


def _dot(x: float, y: float, point: Point) -> Element:
    return el("circle", class_="dot keeps" if point.good else "dot", cx=_share(x), cy=f"{y:.1f}", r="4")


def _line(class_: str, x1: str, y1: str, x2: str, y2: str) -> Element:
    return el("line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2)


def _upright(x: float, height: int) -> Element:
    return _line("target", _share(x), "-2", _share(x), f"{height + 2}")


def _share(value: float) -> str:
    return f"{value:.2f}%"


def _finite(value: float) -> float:
    return max(0.0, value) if math.isfinite(value) else 0.0
