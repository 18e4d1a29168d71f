"""
vLLM's exposition text -> one ``EngineReading`` per engine.

Between two samples only values change, so each line's series part is looked up in a table of series that were
seen before; only a series never seen is parsed. That, and skipping every family that kvpressure does not read, is
what makes a sample cheap (see bench/). Text format 0.0.4 and OpenMetrics are both read: vLLM's Rust front end
knows only the latter, and some clients rename ``vllm:x`` to ``vllm_x`` in it.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from kvpressure.vllm import names
from kvpressure.vllm.cells import EngineCells, Values
from kvpressure.vllm.numbers import HIGHEST, parse_float
from kvpressure.vllm.reading import Cache, EngineKey, EngineReading, Exposition, ExpositionError
from kvpressure.vllm.spellings import SPELLINGS, Spelling

MAX_LINE = 8192
"""Longest line of a family that is read, in characters; cache_config_info has some 1500."""
MAX_REMEMBERED = 16 * 1024 * 1024
"""Characters of series names kept at most; beyond it everything is forgotten and learned anew."""
MAX_ENGINES = 128
"""Engines read from one exposition at most."""
MAX_NEW = 250_000
"""Lines never seen before that one exposition may have; more would hold up whoever waits for the event loop."""
MAX_NEW_SERIES = 50_000
"""Series to be read, never seen before, that one exposition may have; 128 engines have some 13,000."""

_FOREIGN, _COMMENT, _REFUSED = -1, -2, -3
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*", re.ASCII)
# Label values may hold spaces, braces and escaped quotes; an OpenMetrics exemplar has braces of its own. White space
# is taken whole (`*+`): given back piece by piece, thousands of spaces would hold up the event loop.
_PAIR = r'\s*+[a-zA-Z_][a-zA-Z0-9_]*\s*+=\s*+"(?:[^"\\]|\\.)*"\s*+'
_LINE = re.compile(
    rf"[a-zA-Z_:][a-zA-Z0-9_:]*(\{{({_PAIR}(?:,{_PAIR})*,?\s*|\s*)\}})?"
    r"[ \t]+(\S+)(?:[ \t]+[-+0-9.eE]+)?[ \t]*(?:[ \t]#.*)?$",
    re.ASCII,
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class ExpositionReader:
    """
    Reads one vLLM's expositions, one after the other.

    It remembers series names only, never a value: the same text gives the same readings whatever came before.
    """

    def __init__(self) -> None:
        self._forget()

    def read(self, text: str) -> Exposition:
        """
        Read one exposition.

        Raises:
            ExpositionError: the text is empty, cut off, or not an exposition.
        """
        _check_whole(text)
        if self._remembered > MAX_REMEMBERED:
            self._forget()
        problems: Counter[str] = Counter()
        samples = self._read_values(text, problems)
        if problems["too_many_engines"] and self._engines_present() < MAX_ENGINES:
            # Engines of the past took the places of those of today.
            self._forget()
            problems.clear()
            samples = self._read_values(text, problems)
        if not samples:
            raise ExpositionError("not_exposition", "the body has no line in Prometheus' text format")
        return Exposition(self._readings(text, problems), {reason: n for reason, n in problems.items() if n})

    def _engines_present(self) -> int:
        """Engines that the exposition which was just read speaks of."""
        return sum(cells.present(self._values) for cells in self._engines.values())

    def _read_values(self, text: str, problems: Counter[str]) -> int:
        """Put each sample's value into its slot; the number of lines that were samples."""
        known, values = self._known, self._values
        values[:] = [None] * len(values)
        self._broken.clear()
        samples = new = 0
        most_slots = len(values) + MAX_NEW_SERIES
        for line in text.split("\n"):
            series, _, raw = line.rpartition(" ")
            slot = known.get(series)
            value = _number(raw) if slot is not None and slot >= 0 else None
            if slot is None:
                new += 1
                if new > MAX_NEW or len(values) > most_slots:
                    self._forget()
                    raise ExpositionError("too_many_series", "the body has more new series than can be read in time")
            if slot is None or (slot >= 0 and value is None):
                # A series never seen, or a value that is not quite one: only the whole line's grammar tells.
                slot, raw = self._learn(line, problems)
                value = _number(raw)
            if slot >= 0:
                if value is None:
                    problems["bad_value"] += 1
                if values[slot] is not None:
                    problems["duplicate_series"] += 1
                else:
                    values[slot] = math.nan if value is None else value
            samples += slot != _COMMENT
        return samples

    def _forget(self) -> None:
        self._known: dict[str, int] = {}
        self._remembered = 0
        self._values: Values = []
        self._engines: dict[EngineKey, EngineCells] = {}
        self._broken: set[str] = set()
        """Fields with a line that could not be read in the present exposition."""
        # Slot and content of each cache_config_info by its engine label, which is empty before 0.9.
        self._caches: dict[str, list[tuple[int, Cache]]] = {}

    def _learn(self, line: str, problems: Counter[str]) -> tuple[int, str]:
        """Find out what a line is that was not seen before; its slot (or a marker) and the text of its value."""
        if not line:
            return _COMMENT, ""
        series, _, last = line.rpartition(" ")
        if line.startswith("#"):
            return self._remember(series, _COMMENT), ""
        name = _NAME.match(line)
        if name is None:
            problems["bad_line"] += 1
            return _COMMENT, ""
        spellings = SPELLINGS.get(name[0])
        if spellings is None:
            # Values of other families are not read. Without labels nothing but the value tells a sample from prose.
            if line[name.end() : name.end() + 1] == "{" and series.endswith("}"):
                return self._remember(series, _FOREIGN), ""
            if series and line[name.end()] in "{ \t" and _is_number(last):
                return _FOREIGN, ""
            problems["bad_line"] += 1
            return _COMMENT, ""
        parsed = _LINE.match(line) if len(line) <= MAX_LINE else None
        if parsed is None:
            problems["bad_line" if len(line) <= MAX_LINE else "label_too_long"] += 1
            # Absent would mean that vLLM does not say it; here it does, and it cannot be read.
            self._broken.update(spelling.family.field for spelling in spellings)
            return _COMMENT, ""
        series = name[0] + (parsed[1] or "")
        # A timestamp or an exemplar behind the value: the series was perhaps seen, though the line was not.
        slot = self._known.get(series)
        if slot is None:
            slot = self._place(name[0], spellings, _labels(parsed[2] or ""), problems)
            if slot == _REFUSED:
                return _FOREIGN, ""
            self._remember(series, slot)
        return slot, parsed[3]

    def _remember(self, series: str, slot: int) -> int:
        size = len(series)
        # The empty text stands before every line without a space: it names no series.
        if 0 < size <= MAX_LINE:
            self._known[series] = slot
            self._remembered += size
        return slot

    def _place(self, name: str, spellings: list[Spelling], labels: dict[str, str], problems: Counter[str]) -> int:
        """
        Give a series its slot and tell its engine.

        _FOREIGN where no spelling wants it; _REFUSED where it cannot be used, which is told of each exposition anew.
        """
        spelling = next((s for s in spellings if s.fits(labels)), None)
        if spelling is None:
            return _FOREIGN
        slot = len(self._values)
        if spelling.family is names.CACHE_CONFIG:
            self._caches.setdefault(labels.get(names.ENGINE_LABEL, ""), []).append((slot, cache_of(labels)))
            self._values.append(None)
            return slot
        key = labels.get(names.MODEL_LABEL, ""), labels.get(names.ENGINE_LABEL, "") or "0"
        if key not in self._engines and len(self._engines) >= MAX_ENGINES:
            problems["too_many_engines"] += 1
            return _REFUSED
        if not self._engines.setdefault(key, EngineCells()).add(slot, spelling, name, labels):
            problems["bad_line"] += 1
            self._broken.add(spelling.family.field)
            return _REFUSED
        self._values.append(None)
        return slot

    def _readings(self, text: str, problems: Counter[str]) -> dict[EngineKey, EngineReading]:
        openmetrics = text.rstrip().endswith("# EOF")
        readings = {}
        for key, cells in self._engines.items():
            cache = self._cache_of(key[1])
            reading = cells.reading(
                self._values, problems, cache=cache, openmetrics=openmetrics, broken=frozenset(self._broken)
            )
            if reading is not None:
                readings[key] = reading
        return readings

    def _cache_of(self, engine: str) -> Cache | None:
        """The cache of an engine: the info with its label, else one without a label (before 0.9)."""
        for label in (engine, ""):
            for slot, cache in reversed(self._caches.get(label, ())):
                if self._values[slot] is not None:
                    return self._own_share(cache) if label else cache
        return None

    def _own_share(self, cache: Cache) -> Cache:
        """
        The cache with one engine's blocks.

        vLLM adds num_gpu_blocks up over the data-parallel engines of a process and gives each of them the sum
        (core_client: "Sum values from all engines in DP case"; tests/fixtures/recordings/versions/0.32.0-dp2 shows it).
        """
        if cache.tokens is not None or cache.blocks is None:
            return cache
        engines = sum(
            any(self._values[slot] is not None for slot, _ in seen) for label, seen in self._caches.items() if label
        )
        return replace(cache, blocks=cache.blocks / engines)


def _check_whole(text: str) -> None:
    """Refuse what is no exposition, or only a part of one."""
    if not text or text.isspace():
        raise ExpositionError("empty", "the body is empty")
    if text[:256].lstrip()[:1] in ("<", "{", "["):
        raise ExpositionError("not_exposition", "the body is HTML or JSON, not Prometheus' text format")
    if not text.endswith(("\n", "# EOF")):
        raise ExpositionError("truncated", "the body ends in the middle of a line")


def _labels(text: str) -> dict[str, str]:
    return {key: value if "\\" not in value else _unescape(value) for key, value in _LABEL.findall(text)}


def _unescape(value: str) -> str:
    return _ESCAPE.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], value)


def sample(line: str) -> tuple[str, dict[str, str], str] | None:
    """The name, the labels and the text of the value of one line; None where it is no sample."""
    parsed = _LINE.match(line) if len(line) <= MAX_LINE else None
    name = _NAME.match(line) if parsed else None
    return (name[0], _labels(parsed[2] or ""), parsed[3]) if parsed and name else None


def cache_of(labels: Mapping[str, str]) -> Cache:
    """What the labels of ``cache_config_info`` say."""
    return Cache(
        tokens=_number(labels.get(names.CACHE_TOKENS_LABEL)),
        blocks=_number(labels.get(names.CACHE_BLOCKS_LABEL)),
        block_size=_number(labels.get(names.CACHE_BLOCK_SIZE_LABEL)),
        swap_blocks=_number(labels.get(names.CACHE_SWAP_BLOCKS_LABEL)),
        concurrency=_number(labels.get(names.CACHE_CONCURRENCY_LABEL)),
        dtype=labels.get(names.CACHE_DTYPE_LABEL, ""),
        prefix_caching=labels.get(names.CACHE_PREFIX_LABEL, ""),
    )


def _is_number(text: str) -> bool:
    """Whether a text is a number of any kind, NaN and infinity too."""
    return parse_float(text) is not None


def _number(text: str | None) -> float | None:
    """
    A number that can be used: not negative, as all that is read here is, and within HIGHEST.

    None for NaN and infinity, and for the "None" that vLLM puts into a label before the cache exists.
    """
    value = parse_float(text) if text is not None else None
    return value if value is not None and 0.0 <= value < HIGHEST else None
