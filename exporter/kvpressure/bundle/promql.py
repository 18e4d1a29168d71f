"""PromQL text, made of signals: no other module of the bundle spells a metric's name or a duration."""

from kvpressure import signals_streams
from kvpressure.family import Signal
from kvpressure.signals_streams import TAP_SHARE
from kvpressure.vllm.names import PREFIX, Family

Over = float | str | None

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A duration as Prometheus writes it: 90 -> "1m30s"."""
    left, text = round(seconds * 1000), ""
    for unit, length in _UNITS:
        count, left = divmod(left, length * 1000)
        text += f"{count}{unit}" if count else ""
    return text + (f"{left}ms" if left else "") or "0s"


def hold(seconds: float) -> str:
    """The same for `for` and `keep_firing_for`: empty where there is nothing to wait for."""
    return duration(seconds) if seconds else ""


def number(value: float) -> str:
    """A number without a needless fraction: 50.0 -> "50"."""
    return f"{value:.12g}"


def indent(expression: str) -> str:
    """Every line of an expression, further in."""
    return "\n".join(f"  {line}" for line in expression.splitlines())


class Picker:
    """
    Writes selectors.

    Args:
        matchers: matchers that every selector gets, as text; empty for none.
    """

    def __init__(self, matchers: str) -> None:
        self._matchers = matchers

    def __call__(
        self, signal: Signal, *matchers: str, part: str = "", over: Over = None, offset: float | None = None
    ) -> str:
        """
        The selector of a signal's series.

        Args:
            signal: which.
            matchers: more matchers, as PromQL writes them.
            part: ``_sum``, ``_count`` or ``_bucket`` of a histogram.
            over: seconds of a range, or a variable of a dashboard that stands for them.
            offset: seconds into the past.
        """
        return self._selector(signal.metric + part, matchers, over, offset)

    def one(self, signal: Signal, label: str, value: str, *matchers: str) -> str:
        """The series whose label has this value, without the label: it says no more than the rule does."""
        series = self(signal, *matchers, f'{label}="{value}"')
        return f"max without ({label}) ({series})"

    def upstream(
        self, family: Family, function: str = "", *, part: str = "", over: Over = None, offset: float | None = None
    ) -> str:
        """A function of what vLLM itself exposes, by every spelling since 0.6: the newest one that is there."""
        total = "_total" if family.kind == "counter" else part
        spellings = []
        for alias in family.aliases:
            where = tuple(f'{name}="{value}"' for name, value in alias.where)
            series = self._selector(PREFIX + alias.name + total, where, over, offset)
            spellings.append(f"{function}({series})" if function else series)
        return spellings[0] if len(spellings) == 1 else f"({' or '.join(spellings)})"

    def up(self, *, over: Over = None, offset: float | None = None) -> str:
        """Prometheus' own `up` of the targets that the matchers pick."""
        return self._selector("up", (), over, offset)

    def _selector(self, name: str, matchers: tuple[str, ...], over: Over = None, offset: float | None = None) -> str:
        inner = ",".join(matcher for matcher in (self._matchers, *matchers) if matcher)
        text = f"{name}{{{inner}}}" if inner else name
        text += f"[{over if isinstance(over, str) else duration(over)}]" if over is not None else ""
        return text + (f" offset {duration(offset)}" if offset is not None else "")


def tap_else_log(pick: Picker, signal: Signal, window: str) -> str:
    """
    One view of the same users: the tap's, or the log's where the tap sees too few of them (``TAP_SHARE``).

    Args:
        pick: selects the exporters.
        signal: of streams, with a label `window`.
        window: the value of that label.
    """
    tap, log = (pick.one(signal, "window", window, f'source="{source}"') for source in ("tap", "log"))
    of_tap, of_log = (_streams(pick, f'source="{source}"') for source in ("tap", "log"))
    seen = f"{of_tap}\n>= ignoring (source)\n{number(TAP_SHARE)} * ({of_log})"
    return f"{tap}\nor\n{log}\nunless ignoring (source)\n(\n{indent(seen)}\n)"


def _streams(pick: Picker, matcher: str) -> str:
    """Requests of the last five minutes and those that stream now: in a livelock nothing new begins."""
    streamed = pick(signals_streams.REQUESTS_STREAMED, matcher, over=300.0)
    return f"increase({streamed}) + {pick(signals_streams.REQUESTS_STREAMING, matcher)}"
