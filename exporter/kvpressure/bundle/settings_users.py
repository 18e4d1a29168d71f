"""The settings of the alerts on what users see (users.py)."""

from dataclasses import dataclass

from kvpressure.settings import setting


@dataclass(frozen=True, slots=True)
class PausingConfig:
    """KVPressureRequestsPausing: users see their answers stand still, whatever the reason. Pages."""

    share: float = setting(
        0.05,
        "Share of the requests that are paused. One in twenty, as for a storm; lower and raise the two together. The "
        "exporter's stream.pause-threshold says what a pause is.",
        "ratio",
        low=0,
        high=1,
    )
    window: str = setting(
        "5m", "Over which the share is taken. 1m is wild at little traffic; 15m pages later.", "window"
    )
    still: float = setting(
        120.0,
        "Within this time the share of a single minute must have been as high: what is over need not wake anybody, and "
        "stalls that come every other minute are not over. Raise hold with it.",
        "duration",
        low=60,
    )
    requests: float = setting(
        20.0,
        "Fewer requests than this (begun in five minutes, or under way) are too few for a share: one of ten is 10 %. "
        "Lower it for very little traffic, and accept pages for single users.",
        "number",
        low=1,
    )
    hold: float = setting(
        240.0,
        "Must hold for this long. A single stall of half a minute is seen for three and a half minutes; lower it and "
        "each of these pages.",
        "duration",
    )
    keep: float = setting(
        180.0, "Fires on for this long after the condition ends: over a restart, and a lull between stalls.", "duration"
    )


@dataclass(frozen=True, slots=True)
class GapConfig:
    """KVPressureInterTokenGapHigh: tokens come, and too slowly, or with long holes. A ticket."""

    p99: float = setting(
        0.5,
        "99th percentile of the gaps, in seconds. It never finds a storm (one preemption is one gap among hundreds: "
        "under 0.66 s in every recorded one), it finds a server that is slow for all. Set it to twice what your model "
        "does under load.",
        "number",
        low=0,
    )
    longest: float = setting(
        10.0,
        "Longest gap in seconds, of which each window has one. Needs the tap or the log. Lower it where somebody gives "
        "up sooner; a storm that was recorded had 23.",
        "number",
        low=0,
    )
    window: str = setting("5m", "Over which both are taken. Raise hold with it.", "window")
    hold: float = setting(
        600.0,
        "Must hold for this long: a burst when load arrives lasts three minutes and is seen for five more.",
        "duration",
    )
    keep: float = setting(
        300.0, "Fires on for this long after the condition ends: a good minute between bad ones is no end.", "duration"
    )


@dataclass(frozen=True, slots=True)
class OutputShiftConfig:
    """KVPressureOutputLengthShift: answers are longer or shorter than they used to be. A ticket."""

    change: float = setting(
        0.3,
        "Relative change of the mean output length. The mean of a hundred answers, whose lengths vary as much as their "
        "mean, scatters by 10 %: this is three times the noise. Raise it where the mix of clients changes by the hour.",
        "ratio",
        low=0.01,
    )
    requests: float = setting(
        100.0,
        "Requests that both sides of the comparison must have, at the least. With fewer the mean is noise: lower it "
        "only together with a higher change.",
        "number",
        low=1,
    )
    window: float = setting(
        900.0, "Length of the present side. Raise it where fewer requests come in that time.", "duration", low=60
    )
    day_part: float = setting(
        7200.0,
        "Length of yesterday's side, around the same time of day. Shorter follows the day more closely.",
        "duration",
        low=900,
    )
    before: float = setting(
        21_600.0,
        "Where yesterday has too few requests: so much time before the present side. Lower it where days are uneven.",
        "duration",
        low=900,
    )
    hold: float = setting(
        900.0,
        "Must hold for this long: so that it is not one batch of requests. Raise it for longer batches.",
        "duration",
    )
    keep: float = setting(
        1800.0,
        "Fires on for this long after the condition ends, so that it is one ticket a shift in length.",
        "duration",
    )


@dataclass(frozen=True, slots=True)
class StallConfig:
    """KVPressureStallElsewhere: streams stand still and the cache is not the reason. A ticket."""

    hold: float = setting(
        600.0,
        "Must hold for this long. A single stall is the verdict for five minutes (the exporter's verdict.window), so "
        "this asks for a second one; raise the two together.",
        "duration",
    )
    keep: float = setting(
        300.0, "Fires on for this long after the condition ends: a lull between stalls is no end.", "duration"
    )
