"""Where one engine's values stand among the series of an exposition, and how they become fields of a reading."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kvpressure.vllm import names
from kvpressure.vllm.numbers import HIGHEST, parse_float
from kvpressure.vllm.reading import Cache, EngineReading, Era, Histogram
from kvpressure.vllm.spellings import Spelling

Values = list[float | None]
"""The values of one exposition, by slot: None where the series is not in it, NaN where its value cannot be used."""


UNREADABLE = Histogram((math.inf,), (math.nan,), math.nan)
"""Stands for a histogram that is in the exposition and cannot be used."""

MAX_BUCKETS = 256
"""Edges of one histogram, those of the past among them; vLLM has 20."""
MAX_PARTS = 32
"""Values of the label that splits a counter, such as finished_reason; vLLM has 5."""

V_co = TypeVar("V_co", covariant=True)


class _HasValue(Protocol[V_co]):
    def value(self, values: Values, problems: Counter[str], /) -> V_co | None: ...


@dataclass(slots=True)
class Cell:
    """One value: the slots of the series that give it, and which of them are copies per API server process."""

    slots: list[int] = field(default_factory=list)
    copies: set[int] = field(default_factory=set)

    def value(self, values: Values, problems: Counter[str]) -> float | None:
        """The value: the largest, where there are copies per process or others that only foreign labels tell apart."""
        if len(self.slots) == 1:
            return values[self.slots[0]]
        found = {slot: value for slot in self.slots if (value := values[slot]) is not None}
        if not found:
            return None
        rivals = len(found.keys() - self.copies) + bool(found.keys() & self.copies)
        if rivals > 1:
            problems["duplicate_series"] += rivals - 1
        return max((value for value in found.values() if not math.isnan(value)), default=math.nan)


@dataclass(slots=True)
class HistogramCells:
    """The series of one histogram under one spelling."""

    buckets: dict[float, Cell] = field(default_factory=dict)
    sum: Cell = field(default_factory=Cell)
    count: Cell = field(default_factory=Cell)
    edges: tuple[float, ...] = ()

    def value(self, values: Values, problems: Counter[str]) -> Histogram | None:
        """The histogram; None where it is absent, ``UNREADABLE`` where it is not whole: quantiles would be wrong."""
        if not self.edges:
            self.edges = tuple(sorted(self.buckets))
        edges, counts = [], []
        for edge in self.edges:
            cell = self.buckets[edge]
            count = values[cell.slots[0]] if len(cell.slots) == 1 else cell.value(values, problems)
            # An edge can go away: the user may set other ones with a restart.
            if count is not None:
                edges.append(edge)
                counts.append(count)
        if not counts:
            return None
        total = self.sum.value(values, problems)
        count = self.count.value(values, problems)
        rising = all(a <= b for a, b in itertools.pairwise([0.0, *counts]))  # false where one is NaN
        whole = edges[-1] == math.inf and count in (None, counts[-1])
        if not whole or not rising or total is None or math.isnan(total):
            problems["broken_histogram"] += 1
            return UNREADABLE
        return Histogram(self.edges if len(edges) == len(self.edges) else tuple(edges), tuple(counts), total)


@dataclass(slots=True)
class EngineCells:
    """All that is read of one engine. The inner lists are by rank of the spelling, the preferred one first."""

    scalars: dict[str, list[Cell]] = field(default_factory=dict)
    splits: dict[str, dict[str, Cell]] = field(default_factory=dict)
    histograms: dict[str, list[HistogramCells]] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    labelled_slots: list[int] = field(default_factory=list)
    ray_slots: list[int] = field(default_factory=list)

    def add(self, slot: int, spelling: Spelling, name: str, labels: dict[str, str]) -> bool:
        """Take a series that stands in `slot`; whether it can be used."""
        cell = self._cell(spelling, labels)
        if cell is None:
            return False
        cell.slots.append(slot)
        if names.PID_LABEL in labels:
            cell.copies.add(slot)
        self.slots.append(slot)
        if names.ENGINE_LABEL in labels:
            self.labelled_slots.append(slot)
        if name.startswith(names.RAY_PREFIX):
            self.ray_slots.append(slot)
        return True

    def present(self, values: Values) -> bool:
        """Whether an exposition speaks of this engine."""
        return _any(self.slots, values)

    def _cell(self, spelling: Spelling, labels: dict[str, str]) -> Cell | None:
        """The cell that a series fills, or None where a bucket has no usable edge, or there are too many."""
        family = spelling.family
        if family.kind == "histogram":
            cells = self.histograms.setdefault(family.field, [HistogramCells() for _ in family.aliases])[spelling.rank]
            if spelling.part != "bucket":
                return cells.sum if spelling.part == "sum" else cells.count
            edge = parse_float(labels.get("le", ""))
            if edge is None or not (0.0 <= edge < HIGHEST or edge == math.inf):
                return None
            if edge not in cells.buckets and len(cells.buckets) >= MAX_BUCKETS:
                return None
            cells.edges = ()
            return cells.buckets.setdefault(edge, Cell())
        if family.split:
            parts, part = self.splits.setdefault(family.field, {}), labels.get(family.split, "")
            return None if part not in parts and len(parts) >= MAX_PARTS else parts.setdefault(part, Cell())
        return self.scalars.setdefault(family.field, [Cell() for _ in family.aliases])[spelling.rank]

    def reading(
        self,
        values: Values,
        problems: Counter[str],
        *,
        cache: Cache | None,
        openmetrics: bool,
        broken: frozenset[str] = frozenset(),
    ) -> EngineReading | None:
        """
        The engine's reading, or None where this exposition does not speak of it.

        Args:
            values: by slot.
            problems: counts what is skipped.
            cache: of the engine.
            openmetrics: whether the exposition ends as OpenMetrics does.
            broken: fields of which some line could not be read, of whatever engine.
        """
        scalars = first_present(self.scalars, values, problems)
        histograms = first_present(self.histograms, values, problems)
        finished = {
            reason: value
            for reason, cell in self.splits.get(names.FINISHED.field, {}).items()
            if (value := cell.value(values, problems)) is not None
        }
        if not scalars and not histograms and not finished:
            return None
        unreadable = {name for name, value in scalars.items() if math.isnan(value)}
        unreadable |= {name for name, value in histograms.items() if value is UNREADABLE}
        # A line that cannot be read may have been one of this engine's.
        unreadable |= {name for name in broken if name not in scalars}
        if names.FINISHED.field in broken or any(math.isnan(value) for value in finished.values()):
            # The sum over reasons would be wrong: none of them is used.
            unreadable.add(names.FINISHED.field)
            finished = {}
        for name in unreadable:
            scalars.pop(name, None)
            histograms.pop(name, None)
        v1_marker = scalars.pop(names.V1_MARKER.field, None)
        unreadable.discard(names.V1_MARKER.field)
        counted = names.PREEMPTIONS.field in scalars or names.PREEMPTIONS.field in unreadable
        v1 = v1_marker is not None or not counted or _any(self.labelled_slots, values)
        era = self._era(values, v1=v1, rust=openmetrics and cache is None)
        known = names.RUNNING.field in scalars
        usage = names.KV_USAGE.field
        if usage in scalars:
            scalars[usage] = min(1.0, scalars[usage])
        if known and era in ("Ray", "Rust") and names.PREEMPTIONS.field not in unreadable:
            # Both create a counter with its first increase: without one there was no preemption.
            scalars.setdefault(names.PREEMPTIONS.field, 0.0)
        lazy = known and era != "V1" and names.FINISHED.field not in unreadable
        return EngineReading(
            era=era,
            cache=cache,
            finished=finished if finished or lazy else None,
            unreadable=frozenset(unreadable),
            **scalars,  # type: ignore[arg-type]  # the field names come from names.FAMILIES; a test compares them
            **histograms,  # type: ignore[arg-type]
        )

    def _era(self, values: Values, *, v1: bool, rust: bool) -> Era:
        """V0 never had an engine label; V1 got it in 0.8.4, and the preemption counter in 0.8.0."""
        if _any(self.ray_slots, values):
            return "Ray"
        if rust:
            return "Rust"
        return "V1" if v1 else "V0"


def _any(slots: list[int], values: Values) -> bool:
    return any(values[slot] is not None for slot in slots)


def first_present(
    table: Mapping[str, Sequence["_HasValue[V_co]"]], values: Values, problems: Counter[str]
) -> dict[str, V_co]:
    """Of each field the best spelling that is present."""
    found: dict[str, V_co] = {}
    for name, ranks in table.items():
        for cells in ranks:
            value = cells.value(values, problems)
            if value is not None:
                found[name] = value
                break
    return found
