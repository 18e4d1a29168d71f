"""The catalogue as a table for people: `kvpressure signals`, and the README's."""

from kvpressure.expose.families import full_help, labels_of
from kvpressure.signals import CATALOGUE

HEADER = ("metric", "type", "own labels", "meaning")
MARKDOWN_HEADER = ("metric", "type", "unit", "labels", "meaning", "why it is not a query")


def rows() -> list[tuple[str, ...]]:
    """One row per signal for the terminal, in the catalogue's order."""
    return [(signal.metric, signal.kind, ", ".join(signal.labels) or "-", full_help(signal)) for signal in CATALOGUE]


def markdown_rows() -> list[tuple[str, ...]]:
    """One row per signal for the README; the headline signals in bold."""
    return [
        (
            f"**`{signal.metric}`**" if signal.headline else f"`{signal.metric}`",
            signal.kind,
            signal.unit,
            ", ".join(f"`{label}`" for label in labels_of(signal)) or "-",
            full_help(signal),
            signal.reason,
        )
        for signal in CATALOGUE
    ]
