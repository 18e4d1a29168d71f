"""Which alerts would page, by the rules as they are: recorded expositions through promtool."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.alert_harness import fired

from .judge import Period, Scrape
from .machine import ROOT

RULES = (ROOT / "alerts" / "kvpressure.rules.yml", ROOT / "alerts" / "kvpressure.alerts.yml")
_BEFORE = 3.0  # seconds of health before a fault


def paced(scrapes: Sequence[Scrape]) -> list[str]:
    """Names of the critical alerts that fire, of scrapes that are fifteen seconds apart, as usual."""
    return _critical(scrapes)


def stretched(scrapes: Iterable[Scrape], period: Period) -> list[str]:
    """
    Names of the critical alerts that fire where each second of a fault is taken for fifteen.

    Minutes that an alert waits for become seconds; the sidecar's own windows stay as they are. It is a harder test
    than any real fault of that length.
    """
    return _critical([each for each in scrapes if period.began - _BEFORE <= each.start <= period.ended])


def _critical(scrapes: Iterable[Scrape]) -> list[str]:
    texts = [(step, f"{scrape.text or ''}\nup {int(scrape.text is not None)}\n") for step, scrape in enumerate(scrapes)]
    with tempfile.TemporaryDirectory() as folder:
        alerts = fired(texts, RULES, Path(folder))
    return sorted(name for severity, name in alerts if severity == "critical")
