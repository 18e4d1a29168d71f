"""The bench: seven hours with the verdicts of an on-call engineer, and the rules of others."""

import alert_bench
import generate
import pytest


@pytest.fixture(scope="module")
def results():
    """Every trace through the bench, ours and the raw group and the peers."""
    return alert_bench.run()


def test_right_on_every_trace(results):
    """No page where an engineer would want none, and one in time where one is wanted."""
    assert {} == {name: result.ours for name, result in results.items() if not result.ours[1]}


def test_the_raw_group_is_right_on_them_too(results):
    """Shapes like these it can tell from vLLM's own series; what it cannot see is not in them."""
    assert {} == {name: result.raw for name, result in results.items() if not result.raw[1]}


def test_the_table_in_the_readme_is_current(results):
    """The table of the README is what was just measured."""
    text = generate.ALERTS_README.read_text(encoding="utf-8")

    assert text == generate.alerts_bench(text, results), "run `make generate`"
