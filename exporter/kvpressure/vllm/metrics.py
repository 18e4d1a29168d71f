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
from dataclasses import replace

from kvpressure.vllm import names
from kvpressure.vllm.cells import EngineCells, Values
from kvpressure.vllm.reading import Cache, EngineKey, EngineReading, Exposition, ExpositionError
from kvpressure.vllm.spellings import SPELLINGS, Spelling

MAX_LINE = 8192
"""Longest line of a family that is read, in characters; cache_config_info has some 1500."""
MAX_REMEMBERED = 16 * 1024 * 1024
"""Characters of series names kept at most; beyond it everything is forgotten and learned anew."""
MAX_ENGINES = 256
"""Engines read from one exposition at most."""

_FOREIGN, _COMMENT, _REFUSED = -1, -2, -3
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*", re.ASCII)
# Label values may hold spaces, braces and escaped quotes; an OpenMetrics exemplar has braces of its own.
_LINE = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
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
        samples = 0
        for line in text.split("\n"):
            series, _, raw = line.rpartition(" ")
            slot = known.get(series)
            if slot is None:
                slot, raw = self._learn(line, problems)
            if slot >= 0:
                value = _number(raw)
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
            if series and line[name.end()] in "{ \t" and _is_number(last):
                return self._remember(series, _FOREIGN), ""
            problems["bad_line"] += 1
            return _COMMENT, ""
        if len(line) > MAX_LINE:
            problems["label_too_long"] += 1
            return _COMMENT, ""
        parsed = _LINE.match(line)
        if parsed is None:
            problems["bad_line"] += 1
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
        if size <= MAX_LINE:
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
            self._caches.setdefault(labels.get(names.ENGINE_LABEL, ""), []).append((slot, _cache(labels)))
            self._values.append(None)
            return slot
        key = labels.get(names.MODEL_LABEL, ""), labels.get(names.ENGINE_LABEL, "") or "0"
        if key not in self._engines and len(self._engines) >= MAX_ENGINES:
            problems["too_many_engines"] += 1
            return _REFUSED
        if not self._engines.setdefault(key, EngineCells()).add(slot, spelling, name, labels):
            problems["bad_line"] += 1
            return _REFUSED
        self._values.append(None)
        return slot

    def _readings(self, text: str, problems: Counter[str]) -> dict[EngineKey, EngineReading]:
        openmetrics = text.rstrip().endswith("# EOF")
        readings = {}
        for key, cells in self._engines.items():
            reading = cells.reading(self._values, problems, cache=self._cache_of(key[1]), openmetrics=openmetrics)
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
        (core_client: "Sum values from all engines in DP case"; recordings/versions/0.32.0-dp2 shows it).
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


def _cache(labels: dict[str, str]) -> Cache:
    return Cache(
        tokens=_number(labels.get("kv_cache_size_tokens")),
        blocks=_number(labels.get("num_gpu_blocks")),
        block_size=_number(labels.get("block_size")),
        swap_blocks=_number(labels.get("num_cpu_blocks")),
        dtype=labels.get("cache_dtype", ""),
        prefix_caching=labels.get("enable_prefix_caching", ""),
    )


def _is_number(text: str) -> bool:
    """Whether a text is a number of any kind, NaN and infinity too."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str | None) -> float | None:
    """
    A number that can be used: finite and not negative, as all that is read here is.

    None for NaN and infinity, and for the "None" that vLLM puts into a label before the cache exists.
    """
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if 0.0 <= value < math.inf else None
