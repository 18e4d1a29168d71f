"""The settings of the alerts on the KV cache itself (pressure.py)."""

from dataclasses import dataclass

from kvpressure.settings import setting


@dataclass(frozen=True, slots=True)
class StormConfig:
    """KVPressurePreemptionStorm: preemption that goes on at a rate that users feel. Pages."""

    per_thousand: float = setting(
        50.0,
        "Preemptions per thousand requests from which churn is a storm: one request in twenty. Storms that were "
        "recorded stand at 865 and 5175, a steady 10 is a ticket and a steady 100 a page. Lower it where each answer "
        "is worth a page; raise it where nobody waits for the stream (batch work).",
        "number",
        low=0,
    )
    window: str = setting(
        "5m",
        "Over which this rate is taken. 1m is wild at little traffic; 15m pages later and stays longer.",
        "window",
    )
    hold: float = setting(
        0.0,
        "Must hold for this long. The regime churn is four minutes of holding already, counted by the second, and it "
        "lasts five more: to wait longer delays every page and prevents none.",
        "duration",
    )
    keep: float = setting(
        240.0,
        "Fires on for this long after the condition ends: over a restart of vLLM and its silence. Churn ends five "
        "minutes after the last preemption, so the page is over nine minutes after its storm. Raise it where a restart "
        "takes longer, or one storm becomes two pages.",
        "duration",
    )


@dataclass(frozen=True, slots=True)
class LivelockConfig:
    """KVPressureLivelock: requests run and preempt one another, and hardly a token comes out. Pages."""

    tokens_per_second: float = setting(
        0.2,
        "Tokens per second and running request below which nobody is served: one in five seconds. The slowest half "
        "minute of a recorded flood gave 10. Raise it where your slowest healthy server stands far above.",
        "number",
        low=0,
    )
    window: float = setting(
        180.0,
        "Over which tokens and preemptions are counted. With less a long prefill between two preemptions may look the "
        "same; more pages later. Keep it over three scrapes.",
        "duration",
        low=60,
    )
    hold: float = setting(
        180.0, "Must hold for this long. A flood works off its worst sooner; lower it for an earlier page.", "duration"
    )
    keep: float = setting(
        180.0, "Fires on for this long after the condition ends: a few tokens between two jams are no end.", "duration"
    )


@dataclass(frozen=True, slots=True)
class ChurnConfig:
    """KVPressurePreemptionChurn: preemption that goes on, and that few users feel yet. A ticket."""

    per_thousand: float = setting(
        5.0,
        "Preemptions per thousand requests from which churn is worth a ticket. Under 1 nobody notices; a steady 10 is "
        "a cache that no longer fits its traffic. Raise it where you run at that edge on purpose.",
        "number",
        low=0,
    )
    window: str = setting(
        "5m", "Over which this rate is taken. 15m is calmer at little traffic, and tells later.", "window"
    )
    slow_window: float = setting(
        3600.0,
        "Preemptions more than five minutes apart are no churn, and at little traffic a steady 10 per thousand are no "
        "more often. There the rate is taken over this time, if five of its six parts brought one to three: bursts "
        "when load arrives, however many, are none of these. Raise it for less traffic still.",
        "duration",
        low=600,
    )
    hold: float = setting(
        300.0, "Must hold for this long. Churn that is over sooner needs no change of settings.", "duration"
    )
    keep: float = setting(
        900.0,
        "Fires on for this long after the condition ends, so that rush hours with breaks are one ticket.",
        "duration",
    )


@dataclass(frozen=True, slots=True)
class MemoryBoundConfig:
    """KVPressureMemoryBound: a queue that does not drain, because the cache has no room. A ticket."""

    blocked_ratio: float = setting(
        0.3,
        "Share of time in which requests waited for KV blocks. From 0.1 on the verdict is kv_memory; a ticket asks for "
        "three times that. Recorded floods, which are over soon, stand at 0.15 to 0.58.",
        "ratio",
        low=0,
        high=1,
    )
    window: str = setting(
        "15m", "Over which this share is taken. 5m tells sooner, and of every flood of some minutes.", "window"
    )
    queue: float = setting(
        600.0,
        "The queue has not been empty for this long. A flood that is worked off sooner is an admission delay and no "
        "ticket; raise it for batch work, whose queue is meant to last.",
        "duration",
        low=60,
    )
    hold: float = setting(
        300.0, "Must hold for this long. Raise it where peaks of that length are accepted.", "duration"
    )
    keep: float = setting(
        600.0,
        "Fires on for this long after the condition ends: a queue that drains once is still one ticket.",
        "duration",
    )


@dataclass(frozen=True, slots=True)
class CapacityConfig:
    """KVPressureCapacityLow: the cache seats fewer requests of usual length than users bring. A ticket."""

    window: float = setting(
        21_600.0,
        "Over which the headroom is taken: requests of p95 length that fit, minus those that run or wait. Raise it to "
        "a day where yours has one peak a day. After a change the ticket stays for most of this time.",
        "duration",
        low=3600,
    )
    quantile: float = setting(
        0.95,
        "Of the requests too many (headroom below 0) seen in this time. 1 is the worst moment, which any flood sets; "
        "0.5 plans for the average and lets every peak wait.",
        "ratio",
        low=0,
        high=1,
    )
    blocked_ratio: float = setting(
        0.01,
        "Share of that time in which requests must have waited for KV blocks. The estimate is pessimistic (the p95 of "
        "prompts plus that of answers), and a full cache that makes nobody wait is what vLLM aims for. 0 tells before "
        "anybody has waited.",
        "ratio",
        low=0,
        high=1,
    )
    hold: float = setting(
        3600.0, "Must hold for this long. It is about planning: nothing is lost by waiting.", "duration"
    )
    keep: float = setting(
        3600.0,
        "Fires on for this long after the condition ends: one ticket for a day's peaks, not one each.",
        "duration",
    )


@dataclass(frozen=True, slots=True)
class PinnedConfig:
    """KVPressurePinned: the cache is full nearly all the time. Not a fault: context for the others."""

    ratio: float = setting(
        0.9,
        "Share of time at or above the exporter's pin threshold. It notifies nobody, so it matters to dashboards only.",
        "ratio",
        low=0,
        high=1,
    )
    window: str = setting("15m", "Over which this share is taken. Shorter flickers with the load.", "window")
    hold: float = setting(900.0, "Must hold for this long. Shorter lists every busy quarter of an hour.", "duration")
    keep: float = setting(300.0, "Fires on for this long after the condition ends, so as not to flicker.", "duration")
