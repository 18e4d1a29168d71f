"""Tables and numbers for people."""

import pytest

from kvpressure import tables


def test_columns_are_aligned_and_the_last_one_wraps():
    """Columns stand under their titles; a long last cell goes on below itself."""
    text = tables.text(("a", "meaning"), [("x", "one two " * 10), ("longer", "short")], width=60)

    lines = text.splitlines()
    assert "a       meaning" == lines[0]
    assert set("-") == set(lines[1])
    assert lines[2].startswith("x       one two")
    assert lines[3].startswith("        ")
    assert "longer  short" == lines[-1]


def test_markdown_escapes_what_would_break_it():
    """A bar in a cell does not start a new one, and a line break does not end the table."""
    assert "| a |\n| --- |\n| x\\|y z |" == tables.markdown(("a",), [("x|y\nz",)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (26600.0, "26,600"),
        (0.12345, "0.123"),
        (1234.5678, "1,235"),
        (12.345, "12.35"),
        (-3.0, "-3"),
    ],
)
def test_numbers(value, text):
    """Numbers have about four significant digits and grouped thousands; what is not known is a dash."""
    assert text == tables.number(value)
