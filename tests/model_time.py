"""A scenario of the lab in model time, with a sampler beside it that asks when it is due."""

from collections.abc import Callable, Iterable

from kvpressure.lab.engine import Engine, Iteration
from kvpressure.lab.load import Load
from kvpressure.lab.scenarios import Scenario


def play(  # noqa: PLR0913  # who is told what
    scenario: Scenario,
    seconds: float,
    seed: int,
    sample: Callable[[float], None],
    finished: Callable[[Iteration], None],
    *,
    left: Callable[[float, Iterable[str]], None] = lambda _now, _requests: None,
    every: float = 1.0,
) -> float:
    """
    Play a scenario, and tell where it ended, in model seconds.

    Args:
        scenario: of the lab.
        seconds: how long, at least.
        seed: of its users and its host.
        sample: is called at each due moment, before a step that ends after it is known.
        finished: is told of each step at its end.
        left: is told when, and the requests of users who left.
        every: seconds between samples.
    """
    engine, load = Engine(scenario.server, scenario.stalls, seed), Load(scenario.workload, seed)
    due = every

    def sample_until(end: float) -> None:
        nonlocal due
        while due <= end:
            sample(due)
            due += every

    while engine.clock < seconds:
        change = load.advance(engine)
        left(engine.clock, change.aborted)
        if engine.scheduler.idle:
            sample_until(load.next_time)
            engine.clock = load.next_time
            continue
        result, duration = engine.begin()
        sample_until(engine.clock + duration)
        finished(engine.finish(result, duration))
    return engine.clock
