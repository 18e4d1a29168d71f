"""The headline signals as tiles: the value over the verdict's window, the last minute, and a small chart."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvpressure.derive.snapshot import StreamSnapshot, StreamWindow, WindowSnapshot
from kvpressure.expose.page import history, words
from kvpressure.expose.page.chart import Chart, draw
from kvpressure.expose.page.history import History, Key
from kvpressure.expose.page.sentences import Case
from kvpressure.expose.page.tree import Element, Node, el
from kvpressure.signals import WINDOWS

MAIN = "5m"
"""The window of the large number."""
_NUMBERS, _CHARTS = words.span(dict(WINDOWS)[MAIN]), words.span(history.SECONDS)
CAPTION = f"Numbers over the last {_NUMBERS}; charts over {_CHARTS}, each point over a minute."
"""What the numbers of the tiles are over."""


@dataclass(frozen=True, slots=True)
class Tile:
    """
    One signal.

    Args:
        name: what people call it.
        field: its field in a window of ``/api/v1/state``.
        key: where its history is.
        windows: of the engine or the streams, the shortest first; empty where nothing is known now.
        least_top: the top of the chart's scale where all is lower.
        words: a value as text.
        unit: what the value is of.
        note: what else is worth saying.
    """

    name: str
    field: str
    key: Key
    windows: Sequence[WindowSnapshot | StreamWindow]
    least_top: float
    words: Callable[[float | None], str]
    unit: str
    note: str = ""

    @property
    def value(self) -> float | None:
        """Over the main window; None where it is not known."""
        return self._over(next((window for window in self.windows if window.window == MAIN), None))

    @property
    def last_minute(self) -> float | None:
        """Over the shortest window."""
        return self._over(next(iter(self.windows), None))

    def _over(self, window: WindowSnapshot | StreamWindow | None) -> float | None:
        found: float | None = None if window is None else getattr(window, self.field)
        return found


def tiles(case: Case, kept: History, *, users: bool) -> Element:
    """
    The tiles of an engine.

    Args:
        case: the engine.
        kept: the points of the charts.
        users: whether those of its model's streams belong to it, as where no other engine serves the model.
    """
    found = list(_of_engine(case))
    streams = _seen(case) if users else None
    if streams is not None:
        found[2:] = _of_streams(case, streams)
    return el("ul", *(draw_tile(tile, kept) for tile in found), class_="tiles", role="list")


def user_tiles(case: Case, kept: History) -> Element:
    """The tiles of the streams of a model, by each source that there is."""
    found = [tile for streams in case.streams for tile in _of_streams(case, streams)]
    return el("ul", *(draw_tile(tile, kept) for tile in found), class_="tiles", role="list")


def draw_tile(tile: Tile, kept: History) -> Element:
    """One tile."""
    chart = Chart(tile.name, kept.times, kept.points(tile.key), tile.least_top, tile.words)
    peak = None if chart.peak is None else max(chart.peak, tile.last_minute or 0.0)
    recent = "not known now" if tile.last_minute is None else f"last minute {tile.words(tile.last_minute)}"
    return el(
        "li",
        el("h3", tile.name),
        el("p", _value(tile), class_="value"),
        el("p", tile.unit, class_="unit"),
        draw(chart),
        el("p", recent if peak is None else f"{recent}, peak {tile.words(peak)}", class_="note"),
        el("p", tile.note, class_="note") if tile.note else None,
        class_="tile",
    )


def _value(tile: Tile) -> Node:
    """The value, with the exact one beside it for machines."""
    if tile.value is None:
        return el("span", words.UNKNOWN, el("span", " not known", class_="hidden"), data_field=tile.field)
    return el("data", tile.words(tile.value), value=repr(tile.value), data_field=tile.field)


def _of_engine(case: Case) -> Iterator[Tile]:
    windows = case.engine.windows
    own = (case.engine.model_name, case.engine.engine)
    threshold = words.over(case.config.stream.pause_threshold)
    yield Tile(
        "Preemptions",
        "preemptions_per_thousand",
        (history.PREEMPTIONS, *own),
        windows,
        10.0,
        words.count,
        "per 1000 requests",
    )
    yield Tile(
        "Cache pinned",
        "pinned_ratio",
        (history.PINNED, *own),
        windows,
        1.0,
        words.percent,
        "of the time",
    )
    yield Tile(
        "Gap p99",
        "gap_p99_seconds",
        (history.GAP_P99, *own),
        windows,
        0.2,
        words.seconds,
        "between tokens",
        note="by vLLM's histogram",
    )
    yield Tile(
        f"Gaps {threshold}",
        "long_gaps_per_thousand",
        (history.LONG_GAPS, *own),
        windows,
        10.0,
        words.count,
        "per 1000 requests",
        note="by vLLM's histogram",
    )


def _seen(case: Case) -> StreamSnapshot | None:
    """The source that is believed, of those that saw any stream; None where vLLM's histogram has to do."""
    return next((streams for streams in case.streams if streams.streamed), None)


def _of_streams(case: Case, streams: StreamSnapshot) -> Iterator[Tile]:
    windows = streams.windows
    main = next((window for window in windows if window.window == MAIN), None)
    own = (streams.source, streams.model_name)
    longest = f"longest {words.seconds(main.gap_max_seconds)}, " if main and main.gap_max_seconds is not None else ""
    others = [
        f"the {other.source} says {words.percent(window.paused_ratio)}"
        for other in case.streams
        for window in other.windows
        if other is not streams and window.window == MAIN and window.paused_ratio is not None
    ]
    yield Tile(
        "Gap p99",
        "gap_p99_seconds",
        (history.STREAM_GAP_P99, *own),
        windows,
        0.2,
        words.seconds,
        "between tokens",
        note=f"{longest}by the {streams.source}",
    )
    yield Tile(
        "Requests paused",
        "paused_ratio",
        (history.PAUSED, *own),
        windows,
        1.0,
        words.percent,
        "of requests",
        note=", ".join([f"{streams.paused_now:,} now", f"by the {streams.source}", *others]),
    )
