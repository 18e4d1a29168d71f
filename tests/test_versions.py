"""What each generation of vLLM exposes, and how it is read; the fixtures are written after vLLM's own source."""

import gzip
from math import inf
from pathlib import Path

import pytest

from kvpressure.vllm import exposed, names
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import Cache, Histogram

FIXTURES = Path(__file__).parent / "fixtures" / "versions"
RECORDINGS = Path(__file__).parents[2] / "shared" / "recordings" / "versions"
KEY = "llama", "0"


def readings(name):
    """The readings of a fixture, which has no problems."""
    exposition = ExpositionReader().read((FIXTURES / f"{name}.prom").read_text(encoding="utf-8"))
    assert exposition.problems == {}
    return exposition.readings


def real(name):
    """The readings of a real exposition, untouched."""
    path = RECORDINGS / name
    if not path.is_file():
        pytest.skip(f"there is no recording {name} beside the checkout")
    exposition = ExpositionReader().read(gzip.decompress(path.read_bytes()).decode())
    assert exposition.problems == {}
    return exposition.readings


@pytest.mark.parametrize(
    ("name", "era"),
    [
        ("v0-0.6.3", "V0"),
        ("v1-0.7.3", "V1"),
        ("v1-0.8.2", "V1"),
        ("v1-0.9.2", "V1"),
        ("v1-0.10.2", "V1"),
        ("ray-0.10.2", "Ray"),
        ("ray-0.12.0", "Ray"),
        ("openmetrics-0.32", "V1"),
        ("rust-0.33", "Rust"),
        ("hybrid-0.32", "V1"),
        ("created-0.32", "V1"),
    ],
)
def test_era(name, era):
    """The generation of metrics is told from labels, markers and the way of writing, never from a version."""
    (reading,) = readings(name).values()

    assert era == reading.era


def test_v0_without_engine_label():
    """V0 has no engine label: its one engine is 0, its cache info without a model is its own."""
    (key,) = (found := readings("v0-0.6.3"))
    reading = found[key]

    assert key == KEY
    assert (
        reading.running,
        reading.waiting,
        reading.swapped,
        reading.kv_usage,
        reading.cpu_kv_usage,
        reading.preemptions,
    ) == (8.0, 5.0, 2.0, 0.975, 0.25, 51.0)
    assert reading.cache == Cache(
        blocks=1000.0, block_size=16.0, swap_blocks=512.0, dtype="auto", prefix_caching="False"
    )


def test_v0_null_block():
    """V0 has no null block: all of its capacity can be used."""
    (reading,) = readings("v0-0.6.3").values()

    assert reading.usable_tokens == reading.capacity_tokens == 16000.0


def test_v0_lazy_success():
    """V0 creates the success series with the first finished request: without them nothing finished, which is known."""
    (reading,) = readings("v0-0.6.3").values()

    assert reading.finished == {}


def test_v0_gap_edges():
    """V0's gaps end at 2.5 s: the edges are those of the exposition, not those of a table."""
    (reading,) = readings("v0-0.6.3").values()

    assert reading.gaps == Histogram((0.01, 0.025, 0.05, 2.5, inf), (0.0, 10.0, 880.0, 895.0, 900.0), 45.5)


def test_v1_07_without_preemption_counter():
    """V1 0.7 has no preemption counter: the reading does not know, rather than say 0."""
    (reading,) = readings("v1-0.7.3").values()

    assert reading.preemptions is None
    assert reading.capacity_tokens is None
    assert reading.finished == {"stop": 1.0, "length": 4.0, "abort": 0.0}


def test_v1_071_without_success_counter():
    """V1 0.7.1 has neither counter nor marker: it is V1 all the same, and what finished is not known."""
    text = 'vllm:num_requests_running{model_name="llama"} 3.0\nvllm:gpu_cache_usage_perc{model_name="llama"} 0.5\n'
    reading = ExpositionReader().read(text).readings[KEY]

    assert reading.era == "V1"
    assert reading.finished is None


def test_cache_not_known_yet():
    """num_gpu_blocks="None" is a cache whose size is not known yet."""
    (reading,) = readings("v1-0.8.2").values()

    assert reading.cache == Cache(block_size=16.0, dtype="auto", prefix_caching="True")
    assert reading.capacity_tokens is None
    assert reading.free_tokens is None


def test_pid_copies():
    """Copies of a gauge per API server process give their maximum, and are no duplicates."""
    (reading,) = readings("v1-0.9.2").values()

    assert reading.kv_usage == 0.75


def test_both_kv_names():
    """Where both names of KV usage stand, one is read; they are never added."""
    (reading,) = readings("v1-0.10.2").values()

    assert reading.kv_usage == 0.5


def test_newest_kv_name_wins():
    """Of two names of KV usage that differ, the newer one is believed."""
    labels = '{engine="0",model_name="m"}'
    text = f"vllm:gpu_cache_usage_perc{labels} 0.1\nvllm:kv_cache_usage_perc{labels} 0.9\n"

    assert ExpositionReader().read(text).readings["m", "0"].kv_usage == 0.9


def test_both_gap_histograms():
    """Where 0.10.2 exposes its gaps under two names, they are read once."""
    (reading,) = readings("v1-0.10.2").values()

    assert reading.gaps == Histogram((1.0, inf), (7.0, 8.0), 4.0)


def test_ray_counters_absent():
    """Ray creates a counter with its first increase: an absent one is 0, and a name without _total is read too."""
    (reading,) = readings("ray-0.10.2").values()

    assert reading.preemptions == 0.0
    assert reading.finished == {}
    assert reading.generation_tokens == 640.0


def test_ray_sanitised():
    """Ray's later names, with an underscore for the colon and a ReplicaId, give the same fields."""
    reading = readings("ray-0.12.0")[KEY]

    assert (reading.running, reading.waiting, reading.kv_usage, reading.preemptions) == (2.0, 1.0, 0.25, 3.0)
    assert reading.finished == {"stop": 12.0}
    assert reading.gaps == Histogram((1.0, inf), (30.0, 31.0), 6.5)


def test_openmetrics():
    """OpenMetrics with underscored names, timestamps, exemplars (one with a brace in it) and # EOF is read."""
    reading = readings("openmetrics-0.32")["tiny", "0"]

    assert (reading.running, reading.waiting, reading.queued, reading.kv_usage) == (10.0, 18.0, 17.0, 1.0)
    assert reading.preemptions == 13.0
    assert reading.gaps == Histogram((1.0, inf), (90.0, 91.0), 12.25)


def test_openmetrics_again():
    """A series whose line ends in a timestamp or an exemplar is the same series at the next sample."""
    reader, text = ExpositionReader(), (FIXTURES / "openmetrics-0.32.prom").read_text(encoding="utf-8")
    first = reader.read(text)
    later = reader.read(text.replace(" 13.0 # {", " 14.0 # {").replace("1796018351.5", "1796018352.5"))

    assert first.readings["tiny", "0"].preemptions == 13.0
    assert later.readings["tiny", "0"].preemptions == 14.0
    assert later.problems == {}


def test_rust_front_end():
    """The Rust front end has no cache info and creates counters lazily: no capacity, and 0 preemptions."""
    reading = readings("rust-0.33")[KEY]

    assert reading.capacity_tokens is None
    assert (reading.preemptions, reading.finished, reading.kv_usage) == (0.0, {}, 0.125)


def test_custom_edges():
    """The edges that a user set are read as numbers, whichever way they are written."""
    first, second = readings("custom-edges-a")["m", "0"].gaps, readings("custom-edges-b")["m", "0"].gaps

    assert first == Histogram((0.5, 1.0, inf), (3.0, 4.0, 6.0), 7.5)
    assert second == Histogram((1.0, 30.0, inf), (2.0, 2.0, 3.0), 33.5)


def test_edges_change():
    """Edges that change between two readings of one reader leave nothing of the old ones behind."""
    reader = ExpositionReader()
    for name in ("custom-edges-a", "custom-edges-b", "custom-edges-a"):
        text = (FIXTURES / f"{name}.prom").read_text(encoding="utf-8")

        assert readings(name)["m", "0"] == reader.read(text).readings["m", "0"]


def test_hybrid_capacity():
    """A hybrid model's capacity is what vLLM states in tokens, not blocks times the smallest block size."""
    reading = readings("hybrid-0.32")["jamba", "0"]

    assert reading.capacity_tokens == 256000.0
    assert reading.usable_tokens == 255996.0


def test_eight_data_parallel_engines():
    """Each of eight engines has its own values, and an eighth of the blocks that every one of them states."""
    found = readings("dp8-0.11.0")

    assert sorted(found) == [("llama", str(k)) for k in range(8)]
    assert [10.0 * k for k in range(8)] == [found["llama", str(k)].preemptions for k in range(8)]
    assert {found["llama", str(k)].capacity_tokens for k in range(8)} == {16000.0}


def test_real_data_parallel():
    """A real vLLM with two engines states 72 blocks in each, and its tokens say that 36 are its own."""
    found = real("0.32.0-dp2/metrics-during.prom.gz")

    assert {key: (r.preemptions, r.capacity_tokens) for key, r in found.items()} == {
        ("tiny", "0"): (8.0, 1152.0),
        ("tiny", "1"): (7.0, 1152.0),
    }
    assert {r.cache.blocks for r in found.values()} == {72.0}


def test_real_data_parallel_before_requests():
    """Before the first request several engines expose no gauges: running is not known, preemptions are."""
    found = real("0.32.0-dp2/metrics-before.prom.gz")

    assert {(r.running, r.waiting, r.kv_usage, r.preemptions) for r in found.values()} == {(None, None, None, 0.0)}


def test_real_openmetrics():
    """The real OpenMetrics answer of /metrics/ reads as V1, with all of its histograms."""
    reading = real("0.32.0-jsonlog/metrics-during.openmetrics.gz")["tiny", "0"]

    assert (reading.era, reading.running, reading.waiting, reading.preemptions) == ("V1", 10.0, 18.0, 13.0)
    assert reading.capacity_tokens == 1152.0
    assert reading.gaps.edges[-2:] == (80.0, inf)


def test_real_without_stats():
    """With --disable-log-stats the exposition is good and has no engine."""
    assert real("0.32.0-nostats/metrics-during.prom.gz") == {}


@pytest.mark.parametrize("name", ["0.18.1-default", "0.18.1-logs", "0.28.0-logs", "0.32.0-api2", "0.32.0-async-on"])
def test_real_versions(name):
    """Real expositions of every recorded version are V1, with a cache of 36 blocks of 32 tokens."""
    (reading,) = real(f"{name}/metrics-during.prom.gz").values()

    assert (reading.era, reading.capacity_tokens) == ("V1", 1152.0)
    assert None not in (reading.running, reading.waiting, reading.kv_usage, reading.preemptions, reading.gaps)


def test_model_name_escapes():
    """A model name with quotes, braces, a backslash, a new line and an accent is read as it was meant."""
    (key,) = (found := readings("model-name"))

    assert key == ('a "quoted" {name}, with \\ and\na new line = "1" é', "0")
    assert (found[key].running, found[key].preemptions) == (3.0, 4.0)


def test_created_is_no_value():
    """A _created gauge is never read for the counter or histogram that it stands beside."""
    reading = readings("created-0.32")["m", "0"]

    assert (reading.preemptions, reading.finished) == (7.0, {"stop": 2.0})
    assert reading.gaps == Histogram((1.0, inf), (5.0, 5.0), 1.0)


@pytest.mark.parametrize("name", ["offload-0.16", "offload-0.24"])
def test_offload_names(name):
    """Offloaded bytes and seconds are the same under the old names alone and under both at once."""
    reading = readings(name)["m", "0"]

    assert (reading.offload_loaded_bytes, reading.offload_stored_bytes) == (4096.0, 8192.0)
    assert (reading.offload_load_seconds, reading.offload_store_seconds) == (0.5, 0.75)


def test_external_cache():
    """What a KV connector was asked for and what it had are counters of their own."""
    reading = readings("offload-0.24")["m", "0"]

    assert (reading.external_queries, reading.external_hits) == (500.0, 200.0)


def test_aborted_requests_missing():
    """V1 keeps the abort counter at 0 whoever aborts: it is read as vLLM says it, and nothing is added."""
    (reading,) = readings("v1-0.7.3").values()

    assert reading.finished["abort"] == 0.0


def test_spellings_of_today():
    """Every series that vLLM 0.32 exposes by itself is read under the spelling that it has there."""
    today = {family.name for family in vars(exposed).values() if isinstance(family, exposed.Exposed)}
    old = {"num_requests_swapped", "cpu_cache_usage_perc", "gpu_prefix_cache_queries"}  # gone before 0.32
    offload = {a.name for f in names.FAMILIES if f.field.startswith("offload") for a in f.aliases}  # only on request

    assert {f.aliases[0].name for f in names.FAMILIES} - old - offload <= today
