"""A scenario in pure model time: thousands of times faster than real time, for tuning, tests and explanations."""

from bisect import bisect_right
from dataclasses import dataclass, field

from kvpressure.lab.engine import Engine, Iteration
from kvpressure.lab.load import Load
from kvpressure.lab.scenarios import Scenario

PAUSE_SECONDS = 1.0
"""A gap longer than this is a pause: the project's default threshold."""

PIN_USAGE = 0.95
"""KV usage at or above this is pinned: the project's default threshold."""


@dataclass(frozen=True, slots=True)
class Figures:
    """
    What happened in one window of a run.

    Args:
        seconds: length of the window.
        served: requests that finished in it, and those that still ran at its end.
        preemptions: requests that lost their blocks.
        counted: by how much vLLM's counter moved.
        streamed: requests that got at least one token.
        paused: requests that saw a gap longer than a second end.
        longest_gap: seconds.
        mean_usage: share of the KV blocks in use, weighted by time.
        top_usage: highest share at the end of a step.
        pinned: share of the time at or above 0.95.
        mean_waiting: queue length, weighted by time.
        least_waiting: shortest queue at the end of a step.
        aborted: requests whose users left.
    """

    seconds: float
    served: int
    preemptions: int
    counted: int
    streamed: int
    paused: int
    longest_gap: float
    mean_usage: float
    top_usage: float
    pinned: float
    mean_waiting: float
    least_waiting: int
    aborted: int

    @property
    def per_thousand(self) -> float:
        """Preemptions per thousand requests served."""
        return 1000 * self.preemptions / max(1, self.served)

    @property
    def paused_share(self) -> float:
        """Share of the streaming requests that paused, 0 to 1."""
        return self.paused / max(1, self.streamed)


@dataclass(frozen=True, slots=True)
class _Step:
    """What ``Trace`` keeps of one step; the state holds from its end until the next one's."""

    now: float
    preempted: int
    counted: int
    finished: int
    running: int
    waiting: int
    usage: float
    tokens: tuple[str, ...]
    paused: tuple[str, ...]
    longest_gap: float
    aborted: int


@dataclass(slots=True)
class Trace:
    """Everything that a run did, step by step; ask it for the ``Figures`` of any window."""

    steps: list[_Step] = field(default_factory=list)
    end: float = 0.0

    def add(self, iteration: Iteration, aborted: int) -> None:
        """Append one step."""
        result = iteration.result
        pauses = [t for t in iteration.tokens if t.gap is not None and t.gap > PAUSE_SECONDS]
        self.steps.append(
            _Step(
                now=iteration.now,
                preempted=len(result.preempted),
                counted=iteration.preemptions,
                finished=sum(1 for token in iteration.tokens if token.finished),
                running=result.running,
                waiting=result.waiting,
                usage=result.usage,
                tokens=tuple(token.sequence.request.id for token in iteration.tokens),
                paused=tuple(token.sequence.request.id for token in pauses),
                longest_gap=max((token.gap or 0.0 for token in iteration.tokens), default=0.0),
                aborted=aborted,
            )
        )
        self.end = iteration.now

    @property
    def preemption_times(self) -> list[float]:
        """The end of every step that preempted, in model seconds."""
        return [step.now for step in self.steps if step.preempted]

    def window(self, start: float = 0.0, end: float = float("inf")) -> Figures:
        """What happened after ``start`` and up to ``end``, both in model seconds."""
        first = bisect_right(self.steps, start, key=lambda step: step.now)
        last = bisect_right(self.steps, end, key=lambda step: step.now)
        steps = self.steps[first:last]
        # A state lasts until the next step ends, or until the run does: idle time counts for what it is.
        ends = [step.now for step in steps[1:]] + [min(end, self.end)]
        held = [(step, max(0.0, until - step.now)) for step, until in zip(steps, ends, strict=True)] if steps else []
        time = sum(seconds for _, seconds in held) or 1.0
        return Figures(
            seconds=time,
            served=sum(step.finished for step in steps) + (steps[-1].running if steps else 0),
            preemptions=sum(step.preempted for step in steps),
            counted=sum(step.counted for step in steps),
            streamed=len({request for step in steps for request in step.tokens}),
            paused=len({request for step in steps for request in step.paused}),
            longest_gap=max((step.longest_gap for step in steps), default=0.0),
            mean_usage=sum(step.usage * seconds for step, seconds in held) / time,
            top_usage=max((step.usage for step in steps), default=0.0),
            pinned=sum(seconds for step, seconds in held if step.usage >= PIN_USAGE) / time,
            mean_waiting=sum(step.waiting * seconds for step, seconds in held) / time,
            least_waiting=min((step.waiting for step in steps), default=0),
            aborted=sum(step.aborted for step in steps),
        )


def simulate(scenario: Scenario, seconds: float, seed: int = 0) -> Trace:
    """Run ``scenario`` for ``seconds`` of model time."""
    engine = Engine(scenario.server, scenario.stalls, seed)
    load = Load(scenario.workload, seed)
    trace = Trace()
    while engine.clock < seconds:
        change = load.advance(engine)
        if engine.scheduler.idle:
            engine.clock = load.next_time
            continue
        result, duration = engine.begin()
        trace.add(engine.finish(result, duration), len(change.aborted))
    return trace
