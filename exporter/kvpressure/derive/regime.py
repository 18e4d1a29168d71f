"""
Regime: is this the burst when load arrives, or preemption that goes on?

The rule, over the moments at which vLLM's preemption counter was seen to move:

* An *episode* is a run of such moments with no pause over `churn_pause` (5 min) between two of them.
* **churn**: the episode is spread over more than `churn_spread` (4 min), has at least `churn_count` (5) preemptions,
  and its last one is no longer ago than `churn_pause`.
* **onset**: else, while the last preemption is under `onset_hold` (3 min) old.
* **calm**: else.

Why time and not a rate: in the recordings a flood on a roomy cache preempts 45 times within 20 s and then never
again, while the tight cache preempts at a lower rate for as long as requests keep coming. At 0.2 requests a second
a storm that hits one user in four is 0.05 preemptions a second, less than one onset gives in passing. What tells
the two apart is only whether it goes on. An onset was over after three minutes at the most, so four minutes is the
least spread that no onset reaches; a storm of two minutes is still called onset, and that is the price.

Why a count of 5: two stray preemptions four minutes apart are no regime. Why a pause of 5 min: at low traffic a
storm preempts every minute or so; with a shorter pause it would fall apart into onsets.

The episode goes on over a restart of vLLM, which empties the cache and changes nothing about the traffic.
"""

from typing import Literal

from kvpressure.config import RegimeConfig

Regime = Literal["calm", "onset", "churn", "unknown"]


class RegimeWatch:
    """Follows the preemption counter of one engine. Bounded: it keeps three numbers."""

    __slots__ = ("_config", "_count", "_first", "_last")

    def __init__(self, config: RegimeConfig) -> None:
        self._config = config
        self._first = 0.0
        self._last: float | None = None
        self._count = 0.0

    def observe(self, t: float, preemptions: float) -> None:
        """Take the number of preemptions that the reading at `t` brought."""
        if not preemptions:
            return
        if self._last is None or t - self._last > self._config.churn_pause:
            self._first = t
            self._count = 0.0
        self._count += preemptions
        self._last = t

    def at(self, t: float) -> Regime:
        """The regime at `t`, which is not before the last reading."""
        if self._last is None:
            return "calm"
        quiet = t - self._last
        goes_on = quiet <= self._config.churn_pause
        if goes_on and self._last - self._first > self._config.churn_spread and self._count >= self._config.churn_count:
            return "churn"
        return "onset" if quiet < self._config.onset_hold else "calm"
