"""
Alertmanager's side: critical pages, warning opens a ticket, info goes nowhere; and one alert silences another.

An onset is told nowhere, because no alert fires for it.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kvpressure.bundle import alerts, receivers
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.promql import duration
from kvpressure.family import ENGINE_LABEL, MODEL_LABEL

PAGE = "kvpressure-page"
TICKET = "kvpressure-ticket"
NOWHERE = "kvpressure-nowhere"

_INSTANCE = ("cluster", "namespace", "instance")
"""Labels that tell one sidecar, and so one vLLM, from every other."""
_MODEL = (*_INSTANCE, MODEL_LABEL)
_ENGINE = (*_MODEL, ENGINE_LABEL)


class Matcher(NamedTuple):
    """What a label of an alert must be: equal (``=``), different (``!=``) or matched as a whole (``=~``)."""

    label: str
    operator: str
    value: str


_OURS = Matcher("alertname", "=~", alerts.PREFIX + ".+")
_CRITICAL = Matcher("severity", "=", "critical")
_INFO = Matcher("severity", "=", "info")


@dataclass(frozen=True, slots=True)
class Inhibition:
    """
    While one of `sources` fires, nobody is told of `targets` that have the same values of the labels `equal`.

    To Alertmanager a label that is missing is an empty one. So two alerts without `engine` have the same engine, and an
    alert with it has never that of an alert without.

    Args:
        sources: names of alerts.
        targets: names of alerts; none means every other one of ours.
        equal: names of labels.
        streams: of the targets only those without `engine`, as what is seen in streams has none.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    streams: bool = False

    @property
    def source_matchers(self) -> tuple[Matcher, ...]:
        """What an alert must be to silence."""
        return (_named(self.sources),)

    @property
    def target_matchers(self) -> tuple[Matcher, ...]:
        """What an alert must be to be silenced."""
        if not self.targets:
            return (_OURS, *(Matcher("alertname", "!=", name) for name in self.sources))
        named = _named(self.targets)
        return (named, Matcher(ENGINE_LABEL, "=", "")) if self.streams else (named,)


# An alert silences what it implies, never what explains it: a storm implies churn, long gaps and a blocked queue. That
# the cache is too small for this traffic (CapacityLow), that answers grew (OutputLengthShift) or that the host stood
# still (StallElsewhere) is news beside it.
#
# Of two pages for one trouble, the one that knows the reason stays. RequestsPausing says that users wait; a storm says
# why, and on which engine. Both ways round would not do: two alerts that inhibit each other are both silent.
#
# Pauses seen in streams have no engine, so a storm on any engine of that vLLM and model silences them. Not the reverse:
# it would silence the storms of all its engines. Long gaps in vLLM's own histogram have an engine, and stay with it.
#
# What it costs: an alert that ends while it is silenced by one of another group is never told to have ended. A storm
# that pages, and whose vLLM then goes down for longer than the storm's page is kept, leaves a page to close by hand.
INHIBITIONS = (
    Inhibition((alerts.LIVELOCK,), (alerts.PREEMPTION_STORM,), _ENGINE),
    Inhibition(
        (alerts.LIVELOCK, alerts.PREEMPTION_STORM),
        (alerts.PREEMPTION_CHURN, alerts.MEMORY_BOUND, alerts.INTER_TOKEN_GAP_HIGH, alerts.PINNED),
        _ENGINE,
    ),
    Inhibition(
        (alerts.LIVELOCK, alerts.PREEMPTION_STORM),
        (alerts.REQUESTS_PAUSING, alerts.INTER_TOKEN_GAP_HIGH),
        _MODEL,
        streams=True,
    ),
    Inhibition((alerts.REQUESTS_PAUSING,), (alerts.INTER_TOKEN_GAP_HIGH,), _ENGINE),
    Inhibition((alerts.VLLM_DOWN,), (), _INSTANCE),
    Inhibition((alerts.EXPORTER_DOWN,), (alerts.SIGNAL_MISSING, alerts.LOG_STALLED), _INSTANCE),
)
"""Who silences whom. None of them lets a ticket silence a page."""


def alertmanager(config: BundleConfig) -> dict[str, Any]:
    """
    The document alertmanager.yml.

    What is not ours opens a ticket: nothing is lost because nobody thought of it. To add kvpressure to a configuration
    that you have, take the one route under `route.routes`, the inhibitions and the receivers.
    """
    ours = _route(config)
    rest = replace(ours, matcher=None, routes=(ours,))
    return {
        "route": _in_file(rest),
        "inhibit_rules": [
            {
                "source_matchers": [_text(matcher) for matcher in rule.source_matchers],
                "target_matchers": [_text(matcher) for matcher in rule.target_matchers],
                "equal": list(rule.equal),
            }
            for rule in INHIBITIONS
        ],
        "receivers": [
            receivers.in_file(receivers.page(PAGE, config)),
            receivers.in_file(receivers.ticket(TICKET, config)),
            {"name": NOWHERE},
        ],
    }


def alertmanager_config(config: BundleConfig) -> dict[str, Any]:
    """
    The same as an AlertmanagerConfig (v1alpha1) of the Prometheus operator.

    It names no namespace, for it belongs into that of the servers: unless `alertmanagerConfigMatcherStrategy` says
    otherwise, the operator lets an object see the alerts of its own namespace alone.
    """
    return {
        "apiVersion": "monitoring.coreos.com/v1alpha1",
        "kind": "AlertmanagerConfig",
        "metadata": {
            "name": config.kubernetes.name,
            "labels": dict(pair.split("=", 1) for pair in config.kubernetes.labels),
        },
        "spec": {
            "route": _in_object(_route(config)),
            "inhibitRules": [
                {
                    "sourceMatch": [_object(matcher) for matcher in rule.source_matchers],
                    "targetMatch": [_object(matcher) for matcher in rule.target_matchers],
                    "equal": list(rule.equal),
                }
                for rule in INHIBITIONS
            ],
            "receivers": [
                receivers.in_object(receivers.page(PAGE, config)),
                receivers.in_object(receivers.ticket(TICKET, config)),
                {"name": NOWHERE},
            ],
        },
    }


@dataclass(frozen=True, slots=True)
class _Route:
    """A route; what it leaves out it has from the route above it. Times in seconds."""

    receiver: str
    matcher: Matcher | None
    group_by: tuple[str, ...] = ()
    times: tuple[float, float, float] | None = None
    routes: "tuple[_Route, ...]" = ()


_TIMES = ("group_wait", "group_interval", "repeat_interval")


def _route(config: BundleConfig) -> _Route:
    """The route of our alerts. What has none of the severities opens a ticket, as a warning does."""
    notify = config.notify
    return _Route(
        TICKET,
        _OURS,
        group_by=notify.group_by,
        times=(notify.ticket_wait, notify.ticket_interval, notify.ticket_repeat),
        routes=(
            _Route(PAGE, _CRITICAL, times=(notify.page_wait, notify.page_interval, notify.page_repeat)),
            _Route(NOWHERE, _INFO),
        ),
    )


def _in_file(route: _Route) -> dict[str, Any]:
    found: dict[str, Any] = {"receiver": route.receiver}
    if route.matcher:
        found["matchers"] = [_text(route.matcher)]
    if route.group_by:
        found["group_by"] = list(route.group_by)
    if route.times:
        found |= {name: duration(seconds) for name, seconds in zip(_TIMES, route.times, strict=True)}
    if route.routes:
        found["routes"] = [_in_file(inner) for inner in route.routes]
    return found


def _in_object(route: _Route) -> dict[str, Any]:
    """The same keys in camel case, matchers as objects."""
    found = {_camel(key): value for key, value in _in_file(route).items()}
    if route.matcher:
        found["matchers"] = [_object(route.matcher)]
    if route.routes:
        found["routes"] = [_in_object(inner) for inner in route.routes]
    return found


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _named(names: tuple[str, ...]) -> Matcher:
    return Matcher("alertname", "=" if len(names) == 1 else "=~", "|".join(names))


def _text(matcher: Matcher) -> str:
    return f'{matcher.label}{matcher.operator}"{matcher.value}"'


def _object(matcher: Matcher) -> dict[str, str]:
    return {"name": matcher.label, "matchType": matcher.operator, "value": matcher.value}
