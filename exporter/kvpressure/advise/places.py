"""Which engines a Prometheus knows, by the sidecar's series and by vLLM's own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvpressure import signals
from kvpressure.advise.promapi import Prometheus
from kvpressure.advise.promql import duration, selector
from kvpressure.family import ENGINE_LABEL, MODEL_LABEL
from kvpressure.vllm import names

_PREFIXES = (
    names.PREFIX,
    names.RAY_PREFIX + names.PREFIX.replace(":", "_"),
    names.RAY_PREFIX + names.PREFIX,
    names.PREFIX.replace(":", "_"),
)
"""What stands before vLLM's names: as it is, through Ray, and with the colon renamed."""

_INSTANCE, _POD, _NAMESPACE = "instance", "pod", "namespace"
_NAME = "__name__"


@dataclass(frozen=True, slots=True)
class Place:
    """
    One engine as Prometheus knows it.

    Args:
        labels: all labels of its series, the target's among them; what tells one of its series from another is not.
        prefix: what stands before vLLM's names; empty where these are the sidecar's series.
        preempted: preemptions in the range, as PromQL estimates them.
        finished: requests finished, the same.
    """

    labels: Mapping[str, str]
    prefix: str = ""
    preempted: float = 0.0
    finished: float = 0.0

    @property
    def model(self) -> str:
        """Its model_name."""
        return self.labels.get(MODEL_LABEL, "")

    @property
    def engine(self) -> str:
        """Its rank; vLLM before 0.8.4 tells none, and has one."""
        return self.labels.get(ENGINE_LABEL) or "0"

    @property
    def target(self) -> dict[str, str]:
        """The labels of whatever Prometheus scraped."""
        return {name: value for name, value in self.labels.items() if name not in (MODEL_LABEL, ENGINE_LABEL)}

    @property
    def where(self) -> str:
        """The target in words, as far as it can be told from others by its instance."""
        return self.labels.get(_INSTANCE, "") or ", ".join(f"{k}={v}" for k, v in sorted(self.target.items()))

    def of_engine(self) -> dict[str, str]:
        """What selects the engine's series; one without a rank has none."""
        return {ENGINE_LABEL: "", **self.labels}


def find(api: Prometheus, end: float, seconds: float) -> tuple[list[Place], list[Place]]:
    """
    Every engine of which there was a sample in the range: by the sidecar's series, and by vLLM's own.

    Raises:
        AdviseError: Prometheus does not answer, or refuses.
    """
    ours = signals.REQUESTS_RUNNING.metric, signals.PREEMPTIONS.metric, signals.REQUESTS_FINISHED.metric
    own = _places(api, end, _queries(ours, seconds))
    for prefix in _PREFIXES:
        running, preemptions, requests = (
            prefix + family.series.removeprefix(names.PREFIX)
            for family in (names.RUNNING, names.PREEMPTIONS, names.FINISHED)
        )
        upstream = _places(api, end, _queries((running, preemptions, requests), seconds), prefix)
        if upstream:
            return own, upstream
    return own, []


def _queries(series: tuple[str, str, str], seconds: float) -> tuple[str, str, str]:
    """Which engines there are, and what each preempted and finished."""
    running, preemptions, finished = series
    over = f"[{duration(seconds)}]"
    return (
        f"max without ({names.PID_LABEL}) (count_over_time({running}{over}))",
        f"increase({preemptions}{over})",
        f"sum without ({names.FINISHED.split}) (increase({finished}{over}))",
    )


def _places(api: Prometheus, end: float, queries: tuple[str, str, str], prefix: str = "") -> list[Place]:
    """One place for each series of the first query; the others give its preemptions and its requests."""
    there, preempted, finished = queries
    found = [_without_name(series.labels) for series in api.at(there, end)]
    if not found:
        return []
    preemptions, requests = (_by_labels(api, query, end) for query in (preempted, finished))
    return [
        Place(labels, prefix, preemptions.get(_key(labels), 0.0), requests.get(_key(labels), 0.0)) for labels in found
    ]


def _by_labels(api: Prometheus, query: str, end: float) -> dict[frozenset[tuple[str, str]], float]:
    return {_key(_without_name(series.labels)): series.points[-1][1] for series in api.at(query, end)}


def _without_name(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != _NAME}


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def beside(place: Place, others: Iterable[Place]) -> Place | None:
    """
    The same engine by vLLM's own series, for what the sidecar does not tell; None where it cannot be told which it is.

    Both are in one pod, or on one host; else it is the only one of its model and rank.
    """
    alike = [other for other in others if (other.model, other.engine) == (place.model, place.engine)]
    for same in (_same_pod, _same_host):
        near = [other for other in alike if same(place.labels, other.labels)]
        if len(near) == 1:
            return near[0]
        if near:
            return None
    return alike[0] if len(alike) == 1 else None


def _same_pod(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return _POD in one and all(one.get(name) == other.get(name) for name in (_POD, _NAMESPACE))


def _same_host(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    hosts = [labels.get(_INSTANCE, "").rpartition(":")[0] for labels in (one, other)]
    return hosts[0] == hosts[1] != ""


def presence(place: Place) -> str:
    """The series whose samples tell when the engine was watched."""
    if not place.prefix:
        return selector(signals.REQUESTS_RUNNING.metric, place.of_engine())
    return selector(place.prefix + names.RUNNING.series.removeprefix(names.PREFIX), place.of_engine())
