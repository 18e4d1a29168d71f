"""A quarter of an hour as a small chart: one line, the area under it, and a sentence that says the same."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvpressure.expose.page.history import EVERY, POINTS, SECONDS
from kvpressure.expose.page.tree import Element, el

HEIGHT = 40
_BROKEN = 3.0 * EVERY  # seconds without a point after which the line is broken


@dataclass(frozen=True, slots=True)
class Chart:
    """
    What is drawn.

    Args:
        name: the signal, for whoever does not see it.
        times: of the points, oldest first; the last one stands at the right edge.
        points: the values; None where the line is broken.
        least_top: the top of the scale where all values are lower, so that next to nothing looks like it.
        words: a value as text.
    """

    name: str
    times: Sequence[float]
    points: Sequence[float | None]
    least_top: float
    words: Callable[[float], str]

    @property
    def peak(self) -> float | None:
        """The largest value; None where nothing is known."""
        return max((value for value in self.points if value is not None), default=None)


def draw(chart: Chart) -> Element:
    """The chart as an image with a text alternative; stretched to its place by the style sheet."""
    peak = chart.peak
    top = max(chart.least_top, peak or 0.0)
    runs = list(_runs(chart, top))
    return el(
        "svg",
        el("path", class_="area", d="".join(_area(run) for run in runs)) if runs else None,
        el("path", class_="stroke", d="".join(_line(run) for run in runs)) if runs else None,
        class_="chart",
        role="img",
        viewBox=f"0 0 {POINTS} {HEIGHT}",
        preserveAspectRatio="none",
        aria_label=_alternative(chart, peak),
    )


def _alternative(chart: Chart, peak: float | None) -> str:
    if peak is None:
        return f"{chart.name}: nothing known in the last 15 min"
    least = min(value for value in chart.points if value is not None)
    now = next(iter(reversed(chart.points)))
    ends = "not known now" if now is None else f"now {chart.words(now)}"
    low, high = chart.words(least), chart.words(peak)
    between = f"{low} throughout" if low == high else f"between {low} and {high}"
    return f"{chart.name} in the last 15 min: {between}, {ends}"


def _runs(chart: Chart, top: float) -> Iterator[list[tuple[int, int]]]:
    """Unbroken parts of the line, as points of the drawing: x to the right, y down."""
    if not chart.times:
        return
    end = chart.times[-1]
    known = [
        (POINTS - round((end - t) / EVERY), round(HEIGHT - 1 - (HEIGHT - 2) * value / top), part)
        for (t, value), part in zip(
            zip(chart.times, chart.points, strict=True), _parts(chart.times, chart.points), strict=True
        )
        if value is not None and end - t < SECONDS
    ]
    for _, run in groupby(known, key=lambda point: point[2]):
        yield [(x, y) for x, y, _ in run]


def _parts(times: Iterable[float], points: Iterable[float | None]) -> Iterator[int]:
    """The number of the unbroken part that each point belongs to."""
    part, before = 0, None
    for t, value in zip(times, points, strict=True):
        if value is None or (before is not None and t - before > _BROKEN):
            part += 1
        before = t
        yield part


def _line(run: list[tuple[int, int]]) -> str:
    """The path of one part: steps from point to point, and one step where several are level."""
    (x, y), rest = run[0], run[1:]
    # A single point is drawn too, as a short level line.
    path, level = f"M{x} {y}", 0 if rest else 1
    for to_x, to_y in rest:
        if to_y == y:
            level += to_x - x
        else:
            path += (f"h{level}" if level else "") + f"l{to_x - x} {to_y - y}".replace(" -", "-")
            level = 0
        x, y = to_x, to_y
    return path + (f"h{level}" if level else "")


def _area(run: list[tuple[int, int]]) -> str:
    last = run[-1][0] + (len(run) == 1)
    return f"{_line(run)}L{last} {HEIGHT}H{run[0][0]}Z"
