"""
Reads a log file and prints what was found: ``python -m bench.logfeeder FILE [gaps]``, as a process to be measured.

With ``gaps``, events go on into the arithmetic of gaps and pauses; without, they are only counted.
"""

import json
import sys
from pathlib import Path

from kvpressure.vllm.logs import LogReader

_BLOCK = 32 * 1024  # as the log observer reads


def main(path: str, *what: str) -> None:
    """Print the counts of what was asked for, as JSON."""
    found = _gaps(Path(path)) if "gaps" in what else _counts(Path(path))
    print(json.dumps(found))


def _counts(path: Path) -> dict[str, int]:
    reader = LogReader()
    counts = {"deltas": 0, "last": 0, "aborted": 0}
    with path.open("rb", buffering=0) as file:
        while data := file.read(_BLOCK):
            for batch in reader.read(data):
                kinds = [event.kind for event in batch.events]
                last = kinds.count("last")
                counts["deltas"] += kinds.count("token") + last
                counts["last"] += last
                counts["aborted"] += kinds.count("abort")
    # An abort is told under both of the names that the request can have.
    return counts | {"aborted": counts["aborted"] // 2}


def _gaps(path: Path) -> dict[str, float]:
    from kvpressure.config import StreamConfig  # noqa: PLC0415  # counting does without it
    from kvpressure.derive.streams import Streams  # noqa: PLC0415

    reader, streams = LogReader(), Streams("log", StreamConfig(), lambda _: "m")
    with path.open("rb", buffering=0) as file:
        while data := file.read(_BLOCK):
            for batch in reader.read(data):
                streams.feed(batch.events)
    (model,) = streams.snapshot(0.0, whole=True)
    return {
        "gaps": model.gaps.counts[-1],
        "seconds": model.gaps.sum,
        "paused": model.paused,
        "streamed": model.streamed,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
