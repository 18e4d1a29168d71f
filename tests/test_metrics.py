"""Reading an exposition: what is a value, what is a fault, and that nothing of an earlier text is remembered."""

import string
import tracemalloc
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from kvpressure.vllm import metrics, reading
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import ExpositionError

KEY = "m", "0"
L = 'engine="0",model_name="m"'
RUNNING = f"vllm:num_requests_running{{{L}}} 1\n"
GAPS = "vllm:inter_token_latency_seconds"
HISTOGRAM = (
    f'{GAPS}_bucket{{{L},le="1"}} 2\n{GAPS}_bucket{{{L},le="+Inf"}} 3\n{GAPS}_count{{{L}}} 3\n{GAPS}_sum{{{L}}} 4\n'
)


def read(*texts):
    """What one reader makes of the last of some texts."""
    reader = ExpositionReader()
    for text in texts[:-1]:
        reader.read(text)
    return reader.read(texts[-1])


def only(*texts):
    """The one engine's reading in the last of some texts."""
    (found,) = read(*texts).readings.values()
    return found


# --- bodies that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason", "sentence"),
    [
        ("", "empty", "the body is empty"),
        (" \n\n", "empty", "the body is empty"),
        ("<html><body>502</body></html>\n", "not_exposition", "the body is HTML or JSON, not Prometheus' text format"),
        ('  {"detail": "Not Found"}\n', "not_exposition", "the body is HTML or JSON, not Prometheus' text format"),
        ("[]\n", "not_exposition", "the body is HTML or JSON, not Prometheus' text format"),
        (RUNNING[:-3], "truncated", "the body ends in the middle of a line"),
        (RUNNING[:-1], "truncated", "the body ends in the middle of a line"),
        ("Bad Gateway!\n", "not_exposition", "the body has no line in Prometheus' text format"),
        ("# only a comment\n", "not_exposition", "the body has no line in Prometheus' text format"),
        (f"vllm:num_requests_running{{{L}\n", "not_exposition", "the body has no line in Prometheus' text format"),
    ],
)
def test_unusable_body(body, reason, sentence):
    """A body that is no whole exposition is refused with one word for the label and one sentence for a person."""
    with pytest.raises(ExpositionError) as fault:
        ExpositionReader().read(body)

    assert (reason, sentence) == (fault.value.reason, str(fault.value))


def test_fault_leaves_nothing():
    """After a body that is refused, the next good one is read as if it were the first."""
    reader = ExpositionReader()
    with pytest.raises(ExpositionError):
        reader.read(RUNNING + "cut off")

    assert reader.read(HISTOGRAM) == ExpositionReader().read(HISTOGRAM)


def test_eof_without_newline():
    """OpenMetrics may end in # EOF without a new line."""
    assert only(RUNNING + "# EOF").running == 1.0


# --- values that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "-0.5", "abc", "1,5"])
def test_unusable_value(value):
    """NaN, infinities, negative numbers and words are no values: the field is unreadable, the rest is read."""
    exposition = read(f"vllm:num_preemptions_total{{{L}}} {value}\n{RUNNING}")
    found = exposition.readings[KEY]

    assert (found.preemptions, found.running, found.unreadable) == (None, 1.0, {"preemptions"})
    assert exposition.problems == {"bad_value": 1}


def test_unusable_ray_counter():
    """A Ray counter that is there and cannot be read is not taken for one that was never increased."""
    text = f"ray_vllm_num_requests_running{{{L}}} 1\nray_vllm_num_preemptions{{{L}}} NaN\n"

    assert only(text).preemptions is None


def test_unusable_reason():
    """One finished_reason that cannot be read spoils the sum over them: none is used."""
    text = RUNNING + "".join(
        f'vllm:request_success_total{{{L},finished_reason="{reason}"}} {value}\n'
        for reason, value in (("stop", 5), ("length", "NaN"))
    )
    found = only(text)

    assert found.finished is None
    assert found.unreadable == {"finished"}


def test_usage_over_one():
    """KV usage over 1 is 1."""
    assert only(f"vllm:kv_cache_usage_perc{{{L}}} 1.0000001\n").kv_usage == 1.0


def test_duplicate_series():
    """Of two lines of one series the first counts, and the second is a problem."""
    exposition = read(RUNNING + RUNNING.replace(" 1\n", " 9\n"))

    assert exposition.readings[KEY].running == 1.0
    assert exposition.problems == {"duplicate_series": 1}


def test_two_series_for_one_place():
    """Of two series that only foreign labels tell apart, and no pid, the larger counts: they are never added."""
    text = f'vllm:num_preemptions_total{{{L},replica="a"}} 3\nvllm:num_preemptions_total{{{L},replica="b"}} 4\n'
    exposition = read(text)

    assert exposition.readings[KEY].preemptions == 4.0
    assert exposition.problems == {"duplicate_series": 1}


def test_pid_nan():
    """A process whose copy cannot be read leaves the maximum to the others."""
    text = "".join(f'vllm:kv_cache_usage_perc{{{L},pid="{p}"}} {v}\n' for p, v in ((1, "NaN"), (2, 0.25), (3, 0.5)))

    assert only(text).kv_usage == 0.5


def test_pid_copies_after_a_series_without():
    """Copies per process are no duplicates, though an earlier vLLM behind the same address exposed one series."""
    copies = "".join(f'vllm:kv_cache_usage_perc{{{L},pid="{p}"}} {v}\n' for p, v in ((1, 0), (2, 0.5)))

    assert read(f"vllm:kv_cache_usage_perc{{{L}}} 0.6\n", copies) == read(copies)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (HISTOGRAM.replace("} 2\n", "} NaN\n"), {"bad_value": 1, "broken_histogram": 1}),
        (HISTOGRAM.replace("} 2\n", "} 9\n"), {"broken_histogram": 1}),
        (HISTOGRAM.replace("+Inf", "5"), {"broken_histogram": 1}),
        (HISTOGRAM.replace("_sum", "_sun"), {"broken_histogram": 1}),
        (HISTOGRAM.replace("} 4\n", "} NaN\n"), {"bad_value": 1, "broken_histogram": 1}),
    ],
    ids=["bucket is NaN", "buckets fall", "no infinite bucket", "no sum", "sum is NaN"],
)
def test_broken_histogram(bad, problem):
    """A histogram that is not whole is unreadable as a whole: a quantile of it would be wrong."""
    exposition = read(RUNNING + bad)
    found = exposition.readings[KEY]

    assert (found.gaps, found.unreadable, exposition.problems) == (None, {"gaps"}, problem)


@pytest.mark.parametrize("le", ["", ',le="x"', ',le="NaN"', ',le="-Inf"', ',le="-1"', ',le="1e300"'])
def test_bucket_without_edge(le):
    """A bucket whose edge is missing or none that a value can reach makes its histogram unreadable: it may be any."""
    exposition = read(f"{RUNNING}{GAPS}_bucket{{{L}{le}}} 7\n{HISTOGRAM}")

    found = exposition.readings[KEY]

    assert (found.gaps, found.unreadable, exposition.problems) == (None, {"gaps"}, {"bad_line": 1})


def test_bad_edge_spoils_no_later_reading():
    """One bucket with the edge NaN does no harm to the expositions after it."""
    wide = HISTOGRAM.replace(
        f'{GAPS}_bucket{{{L},le="1"', f'{GAPS}_bucket{{{L},le="0.5"}} 1\n{GAPS}_bucket{{{L},le="1"'
    )
    bad = HISTOGRAM + f'{GAPS}_bucket{{{L},le="NaN"}} 7\n'

    assert read(bad, wide) == read(wide)


def test_refused_series_are_counted_each_time():
    """A series that is refused is a problem of every exposition that has it, not of the first alone."""
    text = f"{RUNNING}{GAPS}_bucket{{{L}}} 7\n"

    assert read(text, text).problems == read(text).problems == {"bad_line": 1}


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_waiting",
        f"vllm:num_requests_waiting{{{L}}}",
        f"vllm:num_requests_waiting{{{L} 5",
        f'vllm:num_requests_waiting{{{L},x="y}} 5',
        f"vllm:num_requests_waiting{{{L}}} 5 6 7",
        "hello world, this is no metric",
        "0metric 5",
        "x",
    ],
)
def test_bad_line(line):
    """A line that is no sample is skipped and counted; what stands around it is read."""
    exposition = read(f"{RUNNING}{line}\nvllm:num_preemptions_total{{{L}}} 2\n")
    found = exposition.readings[KEY]

    assert (found.running, found.waiting, found.preemptions) == (1.0, None, 2.0)
    assert exposition.problems == {"bad_line": 1}


def test_foreign_exemplar():
    """An exemplar behind a foreign series without labels is no fault."""
    assert read(RUNNING + 'process_cpu_seconds_total 5.0 # {trace_id="a"} 1.0\n# EOF\n').problems == {}


def test_megabyte_label():
    """A label value of 1 MB makes a series of ours unreadable by its length, and costs nothing beside it."""
    line = f'vllm:num_preemptions_total{{{L},x="{"a" * 1_000_000}"}} 5\n'
    exposition = read(RUNNING + line)

    assert exposition.readings[KEY].running == 1.0
    assert exposition.readings[KEY].preemptions is None
    assert exposition.problems == {"label_too_long": 1}


def test_foreign_megabyte_label():
    """A label value of 1 MB in a family that is not read is no problem, and is not remembered."""
    reader = ExpositionReader()
    exposition = reader.read(f'{RUNNING}other_info{{x="{"a" * 1_000_000}"}} 1\n')

    assert exposition.problems == {}
    assert reader._remembered < 200


# --- bounds ---------------------------------------------------------------------------------------------------------


def engines(numbers):
    return "".join(f'vllm:num_requests_running{{engine="{k}",model_name="m"}} 1\n' for k in numbers)


def test_too_many_engines():
    """Beyond the bound no engine is read, and each series that is left out is counted."""
    exposition = read(engines(range(metrics.MAX_ENGINES + 3)))

    assert len(exposition.readings) == metrics.MAX_ENGINES
    assert exposition.problems == {"too_many_engines": 3}


def test_an_engine_too_many_spoils_no_other():
    """What is left out of an engine beyond the bound is known to be its own: those that are read keep all of theirs."""
    finished = f'vllm:request_success_total{{{L},finished_reason="stop"}} 7\n'
    whole = RUNNING + finished + HISTOGRAM
    others = whole.replace('engine="0"', 'engine="surplus"')
    exposition = read(whole + engines(range(1, metrics.MAX_ENGINES)) + others)

    assert exposition.readings[KEY] == read(whole).readings[KEY]
    assert exposition.problems == {"too_many_engines": others.count("\n")}


def test_engines_of_the_past_take_no_place():
    """The bound is on one exposition: engines that an earlier one had keep no new engine out."""
    old, new = engines(range(metrics.MAX_ENGINES)), engines(range(1000, 1003))

    assert read(old, new) == read(new)


def test_endless_new_series():
    """Ever new series make the reader forget at its bound, not grow: 60 MB of names cost it less than 70 MB."""
    reader = ExpositionReader()
    pad = "x" * 1000
    tracemalloc.start()
    try:
        for n in range(60):
            reader.read(RUNNING + "".join(f'foreign{{id="{n}-{k}-{pad}"}} 1\n' for k in range(1000)))

            assert reader._remembered <= metrics.MAX_REMEMBERED + 1_100_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 70 * 1024 * 1024


def test_forgetting_loses_no_value():
    """The exposition that makes the reader forget is read whole, and so is the next one."""
    reader = ExpositionReader()
    pad = "".join(f'foreign{{id="{k}-{"x" * 8000}"}} 1\n' for k in range(metrics.MAX_REMEMBERED // 8000 + 10))
    first = reader.read(RUNNING + pad)
    second = reader.read(RUNNING)

    assert first.readings == second.readings == ExpositionReader().read(RUNNING).readings


# --- for any text ---------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text('"\\{}\n ,=#', max_size=12)
VALUES = st.floats(0, 1e15, allow_nan=False)


@settings(deadline=None, max_examples=150)
@given(model=NAMES, engine=st.from_regex(r"[0-9]{1,3}", fullmatch=True), other=NAMES, values=st.tuples(*[VALUES] * 4))
@example(model="a\\", engine="0", other='"} 5 # {', values=(1.0, 2.0, 3.0, 4.0))
@pytest.mark.parametrize("render", [generate_latest, openmetrics])
def test_rendered_is_read_back(render, model, engine, other, values):
    """Whatever prometheus_client renders, in either format and with any label values, is read back equal."""
    registry = CollectorRegistry()
    labels = ["model_name", "engine"]
    for name, value in zip(("num_requests_running", "num_requests_waiting"), values, strict=False):
        Gauge(f"vllm:{name}", "help", labels, registry=registry).labels(model, engine).set(value)
    counter = Counter("vllm:num_preemptions", 'he"lp\n# {', labels, registry=registry).labels(model, engine)
    counter.inc(values[2])
    reasons = Counter("vllm:request_success", "", [*labels, "finished_reason"], registry=registry)
    reasons.labels(model, engine, other).inc(values[3])
    gaps = Histogram(GAPS, "help", labels, registry=registry, buckets=(0.5, 1, 2.5)).labels(model, engine)
    for value in (0.25, 0.75, 2.0, 99.0):
        gaps.observe(value)
    exposition = ExpositionReader().read(render(registry).decode())
    found = exposition.readings[model, engine]

    assert (found.running, found.waiting, found.preemptions) == values[:3]
    assert found.finished == {other: values[3]}
    assert found.gaps == reading.Histogram((0.5, 1.0, 2.5, inf), (1.0, 2.0, 3.0, 4.0), 102.0)
    assert exposition.problems == {}


PIECES = st.sampled_from(
    [
        RUNNING,
        RUNNING.replace(" 1", " 2"),
        RUNNING.replace(" 1", "\t3"),
        RUNNING.replace(" 1", "4"),
        RUNNING.replace(" 1", " 5#x"),
        RUNNING.replace(" 1", " 1_0"),
        RUNNING.replace(" 1", " 6 1796018351"),
        RUNNING.replace(" 1", ' 6 # {a="b"} 7'),
        RUNNING.replace("\n", " \n"),
        'vllm:num_requests_running{model_name="m"} 1\n',
        'vllm:num_preemptions_total{model_name="m"} 7\n',
        f"ray_vllm_num_requests_running{{{L}}} 8\n",
        f"vllm:num_preemptions_total{{{L}}} NaN\n",
        f'vllm:kv_cache_usage_perc{{{L},pid="1"}} 0.5\n',
        f'vllm:kv_cache_usage_perc{{{L},pid="2"}} 0.25\n',
        f"vllm:kv_cache_usage_perc{{{L}}} 0.6\n",
        f"vllm:gpu_cache_usage_perc{{{L}}} 0.7\n",
        HISTOGRAM,
        HISTOGRAM.replace('le="1"', 'le="1.0"'),
        HISTOGRAM.replace('le="1"', 'le="30"'),
        f'{GAPS}_bucket{{{L},le="NaN"}} 7\n',
        'vllm:cache_config_info{engine="0",num_gpu_blocks="36",block_size="16"} 1\n',
        'vllm:cache_config_info{engine="1",num_gpu_blocks="36",block_size="16"} 1\n',
        'vllm:cache_config_info{num_gpu_blocks="10",block_size="16"} 1\n',
        "# HELP vllm:num_requests_running help\n",
        "foreign 1\n",
        "x\n",
        "# EOF\n",
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


def outcome(reader, text):
    try:
        return reader.read(text)
    except ExpositionError as fault:
        return fault.reason


@settings(deadline=None, max_examples=1500)
@given(texts=st.lists(TEXTS, max_size=3), last=TEXTS)
def test_no_memory_of_values(texts, last):
    """A text read after any other texts gives the same readings and problems as one that is read first."""
    reader = ExpositionReader()
    for text in texts:
        outcome(reader, text)

    assert outcome(ExpositionReader(), last) == outcome(reader, last)


@settings(deadline=None, max_examples=300)
@given(
    texts=st.lists(
        st.text(max_size=200)
        | st.text(string.printable, max_size=200).map(lambda t: t + "\n")
        | st.tuples(TEXTS, st.integers(0, 300), st.text(max_size=3)).map(lambda p: p[0][: p[1]] + p[2] + p[0][p[1] :]),
        max_size=4,
    )
)
def test_any_text(texts):
    """Reading any text raises nothing but ExpositionError, whatever was read before."""
    reader = ExpositionReader()

    assert all(outcome(reader, text) is not None for text in texts)
