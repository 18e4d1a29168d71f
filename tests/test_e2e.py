"""The arithmetic of the experiments on a real vLLM, which themselves are too long for every day."""

import math

import pytest
from e2e import accuracy, cost, fit, likeness, plan, play
from e2e.likeness import Seen

from kvpressure.lab.model import StepTime
from kvpressure.lab.truth import Record


def record(number, *times, error=None):
    """A request that was sent at 0 and got tokens at these times."""
    return Record(number, 0.0, 10, len(times), ts=list(times), token_ts=list(times), error=error, done=error is None)


def run(*records, preemptions=0, counted=0, points=(), seconds=10.0):
    """A run of these requests."""
    return play.summed(
        records, preemptions=preemptions, counted=counted, seconds=seconds, points=list(points), state={}
    )


def point(t, preemptions=0, regime="calm", verdict="healthy"):
    """What a sidecar said."""
    return play.Point(t, preemptions, 0.5, 3.0, 7.0, regime, verdict)


# --- runs ---------------------------------------------------------------------------------------------------------


def test_what_is_summed_up():
    """Paused is strictly over a second; who got no token has no latency; percentiles are nearest rank."""
    seen = run(record(0, 1.0, 2.0), record(1, 0.5, 1.6, 1.7), record(2), preemptions=3, counted=32)

    assert (3, 2, 2, 1) == (seen.requests, seen.streamed, seen.finished, seen.paused)
    assert (0.5, 1.0) == seen.ttft
    assert (1.7, 2.0) == seen.latency
    assert 1.1 == pytest.approx(seen.longest)
    assert 2 == seen.recounted
    assert 1500.0 == seen.per_thousand


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([4, 1, 3, 2], 0.5, 2), ([4, 1, 3, 2], 0.99, 4), ([1, 2, 3], 0.0, 1)],
)
def test_percentiles(values, share, expected):
    """The smallest value with at least that share of them at or below it."""
    assert expected == play.percentile(values, share)


def test_spells():
    """What was said in a row is one spell, from its first to its last moment."""
    points = [point(0.0), point(0.5), point(1.0, regime="onset"), point(2.5, regime="onset"), point(3.0)]

    assert [("calm", 0.5), ("onset", 1.5), ("calm", 0.0)] == run(points=points).spells()


# --- expectations -------------------------------------------------------------------------------------------------


def test_the_experiments_can_be_read():
    """Every expectation in the file is about a run of its group, in words that are known."""
    groups = plan.groups()
    assert {"arms", "control", "regimes", "not_preemption", "step_down"} == {group.name for group in groups}
    for group in groups:
        runs = {setting.name: run(points=[point(0.0)]) for setting in group.settings}
        for seen in runs.values():
            seen.sidecar = {"engines": [{"preemptions": 0}]}
            seen.ttft = seen.latency = (1.0, 1.0)
        plan.unmet(group, runs)


def group(*expect):
    """A group with nothing but expectations."""
    return plan.Group("g", "", "", (), expect)


@pytest.mark.parametrize(
    ("expectation", "sentences"),
    [
        (("preemptions of a", ">", 2), []),
        (("preemptions of a", ">", 3), ["preemptions of a is 3, not > 3"]),
        (("preemptions of b", "<", "preemptions of a"), []),
        (("preemptions of a", "<", "preemptions of b"), ["preemptions of a is 3, not < preemptions of b (0)"]),
        (("preemptions of every run", "=", 0), ["preemptions of a is 3, not = 0"]),
        (("regime of a", "has", "onset"), []),
        (("regime of b", "has", "onset"), ["regime of b is ['calm'], not has onset"]),
        (("regime of a", "lacks", "onset"), ["regime of a is ['calm', 'onset'], not lacks onset"]),
        (("regime of a", "ends", "onset"), []),
        (("last preemption of a", "=", 2.0), []),
    ],
)
def test_expectations(expectation, sentences):
    """What does not hold is told in a sentence, what holds is not."""
    runs = {
        "a": run(preemptions=3, points=[point(0.0), point(2.0, 3, "onset"), point(3.0, 3, "onset")]),
        "b": run(points=[point(0.0)]),
    }

    assert sentences == plan.unmet(group(expectation), runs)


# --- fits and ratios ----------------------------------------------------------------------------------------------


def test_steps_are_read_and_fitted():
    """Lines of steps that follow the model give its numbers back, though one of them is a stall."""
    true = StepTime(base=0.01, decode=0.0004, prefill=0.00002)
    lines = ["INFO 11-30 07:00:00 [x.py:1] Engine 000: something else"]
    for number in range(200):
        context, decoding = (number % 7) * 50, number % 40
        seconds = true.base + true.decode * decoding + true.prefill * context + (3.0 if number == 50 else 0.0)
        lines.append(
            f"INFO Iteration({number}): 1 context requests, {context} context tokens, {decoding} generation requests, "
            f"{decoding} generation tokens, iteration elapsed time: {1000 * seconds:.4f} ms"
        )

    steps = fit.steps(lines)
    found, off = fit.fit(steps)

    assert 200 == len(steps)
    for name in ("base", "decode", "prefill"):
        assert getattr(true, name) == pytest.approx(getattr(found, name), rel=0.01)
    assert 0.01 > off


def test_stamped_steps():
    """Where lines are stamped, a step is what lies between two of them, unless vLLM was idle before it."""
    told = (
        "context requests, 0 context tokens, 4 generation requests, 4 generation tokens, iteration elapsed time: 2.0 ms"
    )
    lines = [
        f"t={at:.6f} INFO 11-30 07:00:00 [x.py:1] Iteration({n}): 0 {told}" for n, at in enumerate((5, 5.01, 9, 9.02))
    ]

    assert [0.01, 0.02] == [pytest.approx(step.seconds) for step in fit.steps(lines)]


def test_too_few_steps():
    """A fit of some steps is refused rather than believed."""
    with pytest.raises(ValueError, match="too few"):
        fit.fit([fit.Step(0, 1, 0.01)] * 99)


def test_ratios():
    """Alike pairs give one, with an interval around it; a pair alone says nothing of how far it may be off."""
    alike = cost.ratio([10.1, 9.9, 10.0], [10.0, 10.0, 10.0])
    assert alike.low < 1.0 < alike.high
    assert 1.0 == pytest.approx(alike.mean, abs=0.001)

    slower = cost.ratio([9.0, 9.01, 8.99, 9.0], [10.0] * 4)
    assert 0.9 == pytest.approx(slower.mean, abs=0.001)
    assert slower.high < 1.0

    assert math.inf == cost.ratio([1.0], [1.0]).high


# --- what must agree ----------------------------------------------------------------------------------------------


def test_what_is_not_alike():
    """Counts beyond a factor of two, shares beyond 15 points, and another order are each told."""
    real = {"a": Seen(100, 0.5, 1.0), "b": Seen(40, 0.1, 1.0), "c": Seen(0, 0.0, 1.0)}

    assert [] == likeness.unlike(real, {"a": Seen(51, 0.6, 1.0), "b": Seen(41, 0.0, 1.0), "c": Seen(0, 0.1, 1.0)})
    assert 1 == len(likeness.unlike(real, real | {"a": Seen(201, 0.5, 1.0)}))
    assert 1 == len(likeness.unlike(real, real | {"b": Seen(40, 0.3, 1.0)}))
    assert 1 == len(likeness.unlike(real, real | {"a": Seen(60, 0.5, 1.0), "b": Seen(70, 0.1, 1.0)}))


def test_pinned_seconds_at_a_second():
    """Sampled every second, the pinned seconds of a storm of the lab are the lab's own, within 15 %."""
    truth, said = accuracy.pinned(1.0, "storm", 300.0)

    assert 60 < truth
    assert abs(said - truth) <= accuracy.PINNED_LIMIT * truth
