# small helpers, named for what they do
"""What the tests of the log observer share."""

from pathlib import Path

from kvpressure.vllm.logs import LogReader

FIXTURES = Path(__file__).parent / "fixtures" / "logs"
NOON = 1796022992.0
"""2026-11-30T07:16:32Z."""


def fixture(name):
    return (FIXTURES / name).read_bytes()


def events(data, arrival=None, since=None, reader=None):
    """All events of some bytes, read at once."""
    batches = (reader or LogReader()).read(data, arrival, since)
    return [event for batch in batches for event in batch.events]


def told(data, **how):
    """Kinds and requests of the events of some bytes."""
    return [(event.kind, event.request) for event in events(data, **how)]


def line_by_line(**how):
    """A reader that looks at each line: what the fast one must agree with."""
    reader = LogReader(**how)
    reader._learn = lambda *_, **__: None
    return reader
