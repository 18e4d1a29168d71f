"""One histogram of vLLM's that no reading holds, by every spelling of it: for tools that read whole recordings."""

import math
from collections import Counter

from kvpressure.vllm import names
from kvpressure.vllm.cells import UNREADABLE, EngineCells, Values, first_present
from kvpressure.vllm.metrics import sample
from kvpressure.vllm.numbers import parse_float
from kvpressure.vllm.reading import EngineKey, Histogram
from kvpressure.vllm.spellings import spellings


class HistogramReader:
    """
    Reads one family out of one vLLM's expositions, one after the other.

    Give it only what an ``ExpositionReader`` took: that one holds what it costs within bounds.

    Args:
        family: a histogram.
    """

    def __init__(self, family: names.Family) -> None:
        self._field = family.field
        self._words = tuple(alias.name for alias in family.aliases)
        self._spellings = spellings((family,))
        self._slots: dict[str, int] = {}
        """By a line's text before its value."""
        self._series: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        self._values: Values = []
        self._engines: dict[EngineKey, EngineCells] = {}

    def read(self, text: str) -> dict[EngineKey, Histogram]:
        """The histogram of each engine; an engine is not in it where the histogram is absent or cannot be used."""
        values = self._values
        values[:] = [None] * len(values)
        for line in text.split("\n"):
            if line.startswith("#") or not any(word in line for word in self._words):
                continue
            series, _, raw = line.rpartition(" ")
            slot = self._slots.get(series)
            if slot is None:
                slot, raw = self._learn(line, series)
            if slot != _NONE:
                value = parse_float(raw)
                values[slot] = math.nan if value is None else value
        found = {key: first_present(cells.histograms, values, Counter()) for key, cells in self._engines.items()}
        return {
            key: histograms[self._field]
            for key, histograms in found.items()
            if histograms.get(self._field, UNREADABLE) is not UNREADABLE
        }

    def _learn(self, line: str, series: str) -> tuple[int, str]:
        """The slot of a line that was not seen before, and the text of its value."""
        found = sample(line)
        if found is None:
            return _NONE, ""
        name, labels, raw = found
        key = name, frozenset(labels.items())
        if key not in self._series:
            self._series[key] = self._place(name, labels)
        # Behind the value there can be a timestamp or an exemplar: then the text before it is not the series.
        if line.endswith(f" {raw}"):
            self._slots[series] = self._series[key]
        return self._series[key], raw

    def _place(self, name: str, labels: dict[str, str]) -> int:
        slot = len(self._values)
        key = labels.get(names.MODEL_LABEL, ""), labels.get(names.ENGINE_LABEL, "") or "0"
        for spelling in self._spellings.get(name, ()):
            if self._engines.setdefault(key, EngineCells()).add(slot, spelling, name, labels):
                self._values.append(None)
                return slot
        return _NONE


_NONE = -1
