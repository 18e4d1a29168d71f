"""
What a recording shows of one engine: its samples through the sidecar's own pipeline, cut into slots.

What a slot has gained is the difference of two running totals of ``EngineState``, which are corrected for restarts.
Time without samples is in no slot, and neither is what counters gained in it: nobody knows when that was.
"""

import itertools
import statistics
from collections.abc import Iterable, Iterator
from itertools import pairwise

from kvpressure import recording, replay
from kvpressure.advise.cuts import SOURCES, Cutter
from kvpressure.advise.engines import choose, missing, named
from kvpressure.advise.seen import AdviseError, Figure, Seen
from kvpressure.advise.told import NOTHING, Told, server
from kvpressure.config import Config
from kvpressure.recording import Row
from kvpressure.vllm import names

SLOT = 15.0
"""Seconds of a slot: what Prometheus would have scraped."""

_ROWS_FOR_INTERVAL = 200
_COMPLAINTS = 3


def seen_in(path: str, *, model: str = "", engine: str = "", slot: float = SLOT, told: Told = NOTHING) -> Seen:
    """
    What a recording shows of one engine.

    Args:
        path: a folder with ``metrics.jsonl.gz``, or such a file; the server's log in the folder is read too.
        model: the name of the model; empty to take any.
        engine: its rank; empty to take any.
        slot: seconds of a slot.
        told: what the flags say of the server.

    Raises:
        AdviseError: the recording cannot be read, or has no such engine.
    """
    try:
        file = recording.find(path)
    except recording.RecordingError as fault:
        raise AdviseError(str(fault)) from fault
    complaints: list[str] = []
    notes = []
    log_file = recording.find_log(path)
    log = recording.blocks(log_file, complaints.append) if log_file else None
    if log_file and replay.untimed(recording.blocks(log_file, lambda _: None)):
        log = None
        notes.append(f"{log_file} is left out: its lines are stamped to the second, which measures no pause.")
    seen = seen_of(
        recording.rows(file, complaints.append),
        source=f"the recording {path}",
        model=model,
        engine=engine,
        slot=slot,
        told=told,
        log=log,
    )
    notes += [f"{sentence}." for sentence in complaints[:_COMPLAINTS]]
    if len(complaints) > _COMPLAINTS:
        notes.append(f"{len(complaints) - _COMPLAINTS} more parts of the recording were skipped.")
    return Seen(seen.model, seen.engine, seen.source, seen.server, seen.slots, seen.sources, (*seen.notes, *notes))


def seen_of(  # noqa: PLR0913  # each can be given, and none has to be
    rows: Iterable[Row],
    *,
    source: str,
    model: str = "",
    engine: str = "",
    slot: float = SLOT,
    told: Told = NOTHING,
    log: Iterable[bytes] | None = None,
) -> Seen:
    """
    What the samples of a vLLM show of one engine.

    Args:
        rows: the samples, in the order in which they were taken.
        source: where they come from, in words.
        model: the name of the model; empty to take any.
        engine: its rank; empty to take any.
        slot: seconds of a slot, no less than the time between two samples.
        told: what the flags say of the server.
        log: the server's log, piece by piece.

    Raises:
        AdviseError: there is no sample of such an engine.
    """
    config = Config()
    interval, rows = _interval(rows, config.sample.interval)
    player = replay.Player(config, interval, log)
    cutter = Cutter(player.target, slot)
    for row in rows:
        player.feed(row)
        cutter.look(row)
    cutter.end()
    if not cutter.tracks:
        raise AdviseError(f"{source} has no sample of a vLLM; record its /metrics, a row per sample")
    loads = {(*key, ""): (track.preempted, track.load) for key, track in cutter.tracks.items()}
    key, notes = choose(loads, source, model, engine)
    track = cutter.tracks[key[:2]]
    slots = tuple(track.slots)
    if not slots:
        raise AdviseError(f"{source} has a single sample of {named(key)}; advice needs at least two, seconds apart")
    of_model = sum(found == key[0] for found, _ in cutter.tracks)
    replicas = Figure(float(of_model), "engines", f"engines of this model in {source}; other servers are not in it")
    upstream = f"{names.CACHE_CONFIG.series} in {source}"
    return Seen(
        model=key[0],
        engine=key[1],
        source=source,
        server=server(told, track.cache, upstream, replicas),
        slots=slots,
        sources=dict(SOURCES),
        notes=(*notes, *track.notes(), *missing(slots, "vLLM's metrics")),
    )


def _interval(rows: Iterable[Row], configured: float) -> tuple[float, Iterator[Row]]:
    """Seconds that were scheduled between samples, as ``recording.interval`` has them, and all the rows."""
    rows = iter(rows)
    first = list(itertools.islice(rows, _ROWS_FOR_INTERVAL))
    gaps = [b.t - a.t for a, b in pairwise(first) if b.t > a.t]
    return max(configured, statistics.median(gaps)) if gaps else configured, itertools.chain(first, rows)
