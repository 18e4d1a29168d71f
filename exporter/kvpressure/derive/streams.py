"""
Streams as their users see them: which requests paused, for how long, and how long the gaps between chunks are.

One ``Streams`` takes the events of one source. A gap lies between two chunks of one choice of one response; the time to
the first chunk is none. A pause is a gap longer than the threshold, and it counts when it passes the threshold, not
when it ends: ``advance`` says up to when silence is known to be silence. A response that breaks off in a pause ends it.

State is bounded: so many responses are followed, each is forgotten when it ends or falls silent, and what is kept of
those that ended are sums.
"""

from collections.abc import Callable, Hashable, Iterable

from kvpressure.config import StreamConfig
from kvpressure.derive.activity import Activity, Place
from kvpressure.derive.gaps import GapWindows, Observations
from kvpressure.derive.snapshot import StreamSnapshot, StreamWindow
from kvpressure.signals import WINDOWS
from kvpressure.signals_streams import GAP_EDGES
from kvpressure.vllm.stream import Source, StreamEvent

_P99 = 0.99


class _Model:
    """What is summed up over the responses of one model."""

    __slots__ = ("abandoned", "activity", "gaps", "longest", "name", "open", "paused", "streamed")

    def __init__(self, name: str, edges: tuple[float, ...]) -> None:
        self.name = name
        self.gaps = GapWindows(edges)
        self.longest = Observations(edges)
        self.activity = Activity()
        self.streamed = 0
        self.paused = 0
        self.abandoned = 0
        self.open = 0


class _Choice:
    """One answer of a response."""

    __slots__ = ("done", "last", "pausing", "timed")

    def __init__(self, t: float) -> None:
        self.last = t
        self.timed = True
        """Whether the next chunk makes a gap with the last one."""
        self.pausing = False
        self.done = False


class _Response:
    """One response that has not ended."""

    __slots__ = ("choices", "longest", "model", "paused", "pausing", "pending", "place", "until")

    def __init__(self, model: _Model) -> None:
        self.model = model
        self.choices: dict[int, _Choice] = {}
        self.longest = 0.0
        self.paused = False
        self.pausing = 0
        """Choices that pause now."""
        self.place = Place()
        self.pending = model.gaps.pending
        self.until = 0.0
        """End of the second in which it counts; 0 where the next chunk has to look."""


class Streams:
    """
    Everything known of the streams that one source sees.

    Args:
        source: which observer.
        config: the pause threshold and the limits.
        name: the `model_name` for the model that a response names, out of a bounded set.
    """

    def __init__(self, source: Source, config: StreamConfig, name: Callable[[str], str]) -> None:
        self.source = source
        self._config = config
        self._name = name
        self._edges = tuple(sorted({*GAP_EDGES, config.pause_threshold}))
        self._models: dict[str, _Model] = {}
        self._responses: dict[Hashable, _Response] = {}
        self._tracked = 0
        """Choices of open responses."""
        self.untracked = 0
        """Chunks of choices that were not followed because too many were."""
        self._now = 0.0
        self._quiet_until = 0.0
        """No choice can pass the threshold before this: a look at all of them found so."""

    def feed(self, events: Iterable[StreamEvent]) -> None:
        """Take events, in the order in which they happened."""
        responses, threshold = self._responses, self._config.pause_threshold
        for event in events:
            kind, t, request, number, _ = event
            # Nearly every event is the next chunk of a stream that flows: that is all that happens here.
            if kind == "token" and (response := responses.get(request)) is not None and t < response.until:
                choice = response.choices.get(number)
                if choice is not None and choice.timed:
                    gap = t - choice.last
                    if 0.0 <= gap <= threshold:
                        choice.last = t
                        response.pending.append(gap)
                        response.longest = max(response.longest, gap)
                        continue
            self._take(event)

    def advance(self, t: float) -> None:
        """All events before `t` have been fed: who has been silent until then, pauses."""
        self._now = max(self._now, t)
        if t <= self._quiet_until:
            return
        threshold = self._config.pause_threshold
        forgotten = []
        earliest = t + threshold
        for request, response in self._responses.items():
            newest = 0.0
            for choice in response.choices.values():
                newest = max(newest, choice.last)
                if not choice.timed or choice.pausing:
                    continue
                if t - choice.last > threshold:
                    self._pause(response, choice)
                else:
                    earliest = min(earliest, choice.last + threshold)
            if t - newest > self._config.idle_timeout:
                forgotten.append(request)
            else:
                earliest = min(earliest, newest + self._config.idle_timeout)
        for request in forgotten:
            self._abandon(request, t)
        self._quiet_until = earliest

    def lose(self, t: float) -> None:
        """Events before `t` were lost, or its clock was set: no gap reaches across it."""
        for response in self._responses.values():
            for choice in response.choices.values():
                self._blind(response, choice, t)

    def restart(self, t: float) -> None:
        """Nobody answered at `t`: whoever has got nothing since has lost the answer, and only its end was not seen."""
        broken = [
            request
            for request, response in self._responses.items()
            if all(choice.last < t for choice in response.choices.values())
        ]
        for request in broken:
            self._abandon(request, t)

    def ensure(self, name: str) -> None:
        """Count from zero for a model, before its first stream."""
        if name not in self._models:
            self._models[name] = _Model(name, self._edges)

    def counts(self, name: str, t: float, seconds: float) -> tuple[int, int]:
        """Requests of a model that streamed in the `seconds` before `t`, and those of them that were paused."""
        model = self._models.get(name)
        return (0, 0) if model is None else model.activity.counts(int(t), seconds)

    def totals(self, name: str) -> tuple[int, int]:
        """Requests of a model that streamed so far, and those of them that were paused."""
        model = self._models.get(name)
        return (0, 0) if model is None else (model.streamed, model.paused)

    def snapshot(self, t: float, *, whole: bool = False) -> tuple[StreamSnapshot, ...]:
        """What is known of each model at `t`, sorted; with `whole`, with a window over everything so far."""
        return tuple(self._model(model, t, whole=whole) for _, model in sorted(self._models.items()))

    def _model(self, model: _Model, t: float, *, whole: bool) -> StreamSnapshot:
        second = int(max(t, self._now))
        model.gaps.turn(second)
        model.activity.forget(second)
        windows = [self._window(model, second, label, seconds) for label, seconds in WINDOWS]
        if whole:
            windows.append(self._window(model, second, "whole", None))
        return StreamSnapshot(
            model_name=model.name,
            source=self.source,
            streamed=model.streamed,
            paused=model.paused,
            abandoned=model.abandoned,
            open=model.open,
            paused_now=model.activity.pausing,
            gaps=model.gaps.histogram(),
            longest_gaps=model.longest.histogram(),
            windows=tuple(windows),
        )

    def _window(self, model: _Model, second: int, label: str, seconds: float | None) -> StreamWindow:
        if seconds is None:
            streamed, paused = model.streamed, model.paused
        else:
            streamed, paused = model.activity.counts(second, seconds)
        return StreamWindow(
            window=label,
            streamed=streamed,
            paused=paused,
            paused_ratio=paused / streamed if streamed else None,
            gap_p99_seconds=model.gaps.quantile(_P99, seconds),
            gap_max_seconds=model.gaps.longest(seconds),
        )

    def _take(self, event: StreamEvent) -> None:
        """One event, whatever it is."""
        kind, t, request, number, model = event
        self._now = max(self._now, t)
        response = self._responses.get(request)
        if kind in ("token", "last"):
            known = response is not None and number in response.choices
            if not known and self._tracked >= self._config.max_tracked:
                self.untracked += 1
                return
            if response is None:
                response = self._open(request, model)
            self._chunk(response, number, t, final=kind == "last")
        elif response is None:
            return
        elif kind == "blind":
            choice = response.choices.get(number)
            if choice is not None:
                if choice.timed and t - choice.last > self._config.pause_threshold:
                    self._pause(response, choice)
                self._blind(response, choice, t)
        elif kind != "start":
            self._close(request, t)

    def _open(self, request: Hashable, model_name: str) -> _Response:
        name = self._name(model_name)
        self.ensure(name)
        model = self._models[name]
        model.streamed += 1
        model.open += 1
        response = self._responses[request] = _Response(model)
        return response

    def _chunk(self, response: _Response, number: int, t: float, *, final: bool) -> None:
        model = response.model
        model.gaps.turn(int(t))
        choice = response.choices.get(number)
        if choice is None:
            choice = response.choices[number] = _Choice(t)
            self._tracked += 1
        elif choice.timed:
            # A clock of whole steps, or of another process, can stand still and step back.
            gap = max(0.0, t - choice.last)
            if gap > self._config.pause_threshold:
                self._pause(response, choice)
            model.gaps.pending.append(gap)
            response.longest = max(response.longest, gap)
        choice.last = max(choice.last, t) if choice.timed else t
        choice.timed = not final
        choice.done = final
        self._resume(response, choice, t)
        # Looked at again in the next second; while another choice pauses, with every chunk.
        response.until = 0.0
        if not response.pausing:
            model.activity.chunk(response.place, int(t))
            response.until = int(t) + 1.0
        self._quiet_until = min(self._quiet_until, choice.last + self._config.pause_threshold)

    def _pause(self, response: _Response, choice: _Choice) -> None:
        if choice.pausing:
            return
        if not response.paused:
            response.paused = True
            response.model.paused += 1
        if not response.pausing:
            response.model.activity.pause(response.place)
        choice.pausing = True
        response.pausing += 1
        # The next chunk of any of its choices has to look.
        response.until = 0.0

    def _resume(self, response: _Response, choice: _Choice, t: float) -> None:
        if not choice.pausing:
            return
        choice.pausing = False
        response.pausing -= 1
        if not response.pausing:
            response.model.activity.resume(response.place, int(t))

    def _blind(self, response: _Response, choice: _Choice, t: float) -> None:
        self._resume(response, choice, t)
        choice.timed = False

    def _close(self, request: Hashable, t: float) -> None:
        """A response ended. A pause that lasts until then is a gap, though no chunk ended it."""
        response = self._responses.pop(request)
        self._tracked -= len(response.choices)
        model = response.model
        model.gaps.turn(int(t))
        for choice in response.choices.values():
            gap = t - choice.last
            if choice.timed and gap > self._config.pause_threshold:
                self._pause(response, choice)
                model.gaps.pending.append(gap)
                response.longest = max(response.longest, gap)
            self._resume(response, choice, t)
        model.open -= 1
        model.longest.add_sorted((response.longest,))

    def _abandon(self, request: Hashable, t: float) -> None:
        """
        A response fell silent for good. Where all its choices were complete, only its end was not seen.

        How long its user waited is not known, so its silence is no gap; but it is its longest wait.
        """
        response = self._responses[request]
        if not all(choice.done for choice in response.choices.values()):
            response.model.abandoned += 1
        for choice in response.choices.values():
            if choice.timed:
                response.longest = max(response.longest, t - choice.last)
            self._blind(response, choice, t)
        self._close(request, t)
