"""A histogram that no reading holds, read beside it."""

import gzip
import math
from pathlib import Path

import pytest

from kvpressure.vllm import names
from kvpressure.vllm.histogram import HistogramReader
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import Histogram

FIXTURES = Path(__file__).parent / "fixtures"
REAL = (FIXTURES / "lab" / "vllm-0.32.0.prom").read_text(encoding="utf-8")
NAME = "vllm:time_to_first_token_seconds"
LABELS = 'engine="0",model_name="m"'


def text(*counts, name=NAME, labels=LABELS, total=9.5, after=""):
    """A histogram with edges 0.5, 1, ... as vLLM writes it."""
    edges = [*(f"{0.5 * (n + 1)}" for n in range(len(counts) - 1)), "+Inf"]
    lines = [f'{name}_bucket{{{labels},le="{edge}"}} {count}{after}' for edge, count in zip(edges, counts, strict=True)]
    return "\n".join([*lines, f"{name}_count{{{labels}}} {counts[-1]}", f"{name}_sum{{{labels}}} {total}", ""])


def read(*bodies):
    """What is read of the last of several expositions by one reader."""
    reader = HistogramReader(names.FIRST_TOKENS)
    return [reader.read(body) for body in bodies][-1]


def test_same_as_a_reading():
    """Read beside, a histogram that a reading holds too is the same one."""
    (key, reading), *_ = ExpositionReader().read(REAL).readings.items()

    assert HistogramReader(names.GAPS).read(REAL)[key] == reading.gaps
    assert HistogramReader(names.PROMPT_LENGTHS).read(REAL)[key] == reading.prompt_lengths


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("expositions/vllm-*.prom.gz")), ids=lambda path: path.name)
def test_real_releases(path):
    """Every real release that is among the fixtures tells the time to the first token, of each of its engines."""
    body = gzip.decompress(path.read_bytes()).decode()
    found = HistogramReader(names.FIRST_TOKENS).read(body)

    assert found.keys() == ExpositionReader().read(body).readings.keys()
    assert all(histogram.count > 0 for histogram in found.values())
    assert all(histogram.edges[-1] == math.inf for histogram in found.values())


@pytest.mark.parametrize("name", [NAME, NAME.replace(":", "_"), f"ray_{NAME}", f"ray_{NAME.replace(':', '_')}"])
def test_ways_of_writing(name):
    """It is known with colon and underscore, with and without Ray's prefix."""
    assert read(text(1, 2, 4, name=name)) == {("m", "0"): Histogram((0.5, 1.0, math.inf), (1, 2, 4), 9.5)}


def test_again():
    """A later exposition gives its own values, whatever came before."""
    assert read(text(1, 2, 4), text(2, 3, 9, total=11.0)) == {
        ("m", "0"): Histogram((0.5, 1.0, math.inf), (2, 3, 9), 11.0)
    }
    assert read(text(1, 2, 4), "vllm:x 1\n") == {}


@pytest.mark.parametrize("after", [" 1700000000000", ' # {trace_id="a"} 0.3', ' # {a="b"} 0.3 1700000000.5'])
def test_behind_the_value(after):
    """A timestamp and an exemplar behind a value do no harm, from one exposition to the next."""
    assert read(text(1, 2, 4, after=after), text(2, 2, 4, after=after))["m", "0"].counts == (2, 2, 4)


@pytest.mark.parametrize(
    "body",
    [
        text(4, 2, 4),  # falls
        text(1, 2, "NaN"),
        text(1, 2, 4, total="NaN"),
        text(1, 2, "x"),
        text(1, 2, 4).replace('le="+Inf"', 'le="9"'),
        text(1, 2, 4).replace('le="0.5"', 'le="x"'),
        text(1, 2, 4).replace(f"{NAME}_sum", "x"),
    ],
)
def test_what_cannot_be_used(body):
    """A histogram that is not whole is absent; one without a readable edge lacks that edge alone."""
    found = read(body)

    assert found == {} or found["m", "0"].edges == (1.0, math.inf)


def test_several_engines():
    """Engines are told apart; one without a rank is engine 0; copies per API server process are one."""
    body = text(1, 2) + text(3, 4, labels='engine="1",model_name="m"') + text(5, 6, labels='model_name="n"')
    copies = text(1, 2, labels=f'{LABELS},pid="7"') + text(1, 3, labels=f'{LABELS},pid="8"')

    assert {key: found.counts for key, found in read(body).items()} == {
        ("m", "0"): (1, 2),
        ("m", "1"): (3, 4),
        ("n", "0"): (5, 6),
    }
    assert read(copies)["m", "0"].counts == (1, 3)
