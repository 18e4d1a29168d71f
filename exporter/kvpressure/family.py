"""What a signal is: one metric family of kvpressure, as data. The signals themselves stand in ``signals.py``."""

from dataclasses import dataclass, field
from typing import Literal

PREFIX = "kvpressure_"

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["engine", "stream", "exporter"]

MODEL_LABEL = "model_name"
ENGINE_LABEL = "engine"
ENGINE_LABELS = (MODEL_LABEL, ENGINE_LABEL)


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """
    One metric family.

    Args:
        name: without the prefix; with ``_total`` for a counter.
        kind: the Prometheus type.
        unit: in words, for people; the name carries the base unit.
        help: one or two sentences; the upstream series are appended from `needs` where it is exposed.
        reason: why PromQL over vLLM's own series cannot do this.
        labels: beyond `model_name` and `engine` (scope engine), beyond `model_name` (scope stream) or in all (scope
            exporter).
        needs: fields of an ``EngineReading`` that must be present; ``streams`` for an observer of streams.
        optional: fields that it uses where they are present.
        scope: whether it belongs to an engine, to the streams of a model, or to the exporter.
        headline: one of the signals that the project exists for.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    reason: str
    labels: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    scope: Scope = "engine"
    headline: bool = False
    metric: str = field(init=False)

    def __post_init__(self) -> None:
        """Give the full name, as Prometheus sees it."""
        object.__setattr__(self, "metric", PREFIX + self.name)
