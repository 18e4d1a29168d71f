"""How often vLLM may be sampled."""

from kvpressure.config import SampleConfig
from kvpressure.derive.duty import Duty


def duty(*took, **given):
    made = Duty(SampleConfig(**given))
    for seconds in took:
        made.observe(seconds)
    return made


def test_before_the_first_sample():
    """Before anything was sampled the interval is the configured one, and nothing has a cost."""
    made = duty(interval=2.0)

    assert (made.interval, made.cost) == (2.0, 0.0)


def test_cheap_samples():
    """Samples that cost less than the budget come at the configured interval."""
    assert duty(0.014, 0.016).interval == 1.0


def test_budget():
    """A sample that costs more than the budget allows spreads the samples out to keep it."""
    made = duty(*[0.06] * 8)

    assert made.interval == 3.0
    assert made.cost / made.interval == 0.02


def test_ceiling():
    """The samples are never further apart than the longest interval, whatever they cost."""
    assert duty(*[1.0] * 8).interval == 5.0


def test_cost_is_of_the_fastest_quarter():
    """Samples that waited for a busy event loop do not raise the cost: the fastest quarter is what counts."""
    assert duty(0.01, 0.03, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0).cost == 0.02


def test_old_samples_are_forgotten():
    """After sixty dearer samples the cheap ones of the past are gone."""
    assert duty(*[0.01] * 60, *[0.0625] * 60).cost == 0.0625
