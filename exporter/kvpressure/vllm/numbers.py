"""Numbers as Prometheus writes them, which are fewer than Python reads."""

HIGHEST = 2.0**63
"""No counter of vLLM gets there; beyond it a sum or a product could leave the range of a float."""


def parse_float(text: str) -> float | None:
    """
    The number in a text; None where there is none.

    Python would also take digits of other scripts, underscores between digits and any white space around them.
    """
    if not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return None
