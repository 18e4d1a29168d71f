"""Where the runbooks stand, for the alerts and the page alike."""

URL = "https://github.com/kvpressure/kvpressure/blob/main/alerts/runbooks/{alert}.md"
"""Of an alert's runbook; the file of that name is in this repository."""


def url(alert: str) -> str:
    """
    The runbook of an alert.

    Args:
        alert: its name, like ``KVPressureMemoryBound``.
    """
    return URL.format(alert=alert)
