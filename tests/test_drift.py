"""What the drift check says of expositions and logs: nothing changed, renamed, gone, or new."""

import gzip

import pytest
from commands import running
from drift_help import FIXTURES, REAL, exposition, ran, row
from e2e import drift, drift_found, drift_logs, drift_reports, drift_table

from kvpressure.vllm import exposed, names
from kvpressure.vllm.metrics import ExpositionReader

VERSIONS = FIXTURES / "versions"
EXPOSITIONS = FIXTURES / "expositions"
FIELDS = ("running", "waiting", "kv_usage", "preemptions", "finished", "generation_tokens", "gaps", "cache", "awake")
WRONG: dict[str, set[str]] = {}
"""What the table claims of a version and vLLM's own code does not have: to be mended in the table."""
RUNS = sorted(path.name for path in EXPOSITIONS.glob("vllm-*.prom.gz") if "nostats" not in path.name)


def test_the_known_version_has_not_changed(tmp_path, capsys):
    """On a real 0.32 exposition all is as the table says, and nothing else differs either."""
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, REAL), "--version", "0.32.0")

    assert 0 == status
    assert "Nothing that kvpressure reads has changed" in out
    assert "Not in it: nothing." in out
    assert "Only in it: nothing." in out
    assert "What is in both is alike" in out


@pytest.mark.parametrize("name", RUNS)
def test_versions_that_were_run(name):
    """Expositions of real servers have what the table says of their versions, but for what is wrong in the table."""
    release = name.removeprefix("vllm-").removesuffix(".prom.gz")
    found = drift.report(["--exposition", str(EXPOSITIONS / name), "--version", release])

    wrong = {row.family.field for engine in found.engines for row in engine.rows if row.broken}
    assert WRONG.get(release, set()) == wrong


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("v0-0.6.3", "0.6.3"),
        ("v1-0.7.3", "0.7.3"),
        ("v1-0.8.2", "0.8.2"),
        ("v1-0.9.2", "0.9.2"),
        ("v1-0.10.2", "0.10.2"),
        ("ray-0.10.2", "0.10.2"),
        ("ray-0.12.0", "0.12.0"),
        ("rust-0.33", "0.33.0"),
    ],
)
def test_spellings_of_the_past(name, release):
    """Families are found under V0's, Ray's and the Rust front end's spellings: none of what is there is called gone."""
    text = (VERSIONS / f"{name}.prom").read_text(encoding="utf-8")
    (reading,) = ExpositionReader().read(text).readings.values()
    rows = drift_table.compare(drift_found.exposed(text), reading.era, drift_table.version(release), source=False)

    found = {row.family.field for row in rows if row.found}
    # These expositions have a few families each. One that its front end makes with its first value reads as 0 before.
    there = {field for field in FIELDS if getattr(reading, field)}
    assert there
    assert there <= found


def test_v0_metrics_that_were_executed():
    """V0's own metrics have what the table says, but for what is wrong in the table."""
    # Made by vLLM 0.9.2's PrometheusStatLogger and CacheConfig, which need no engine, from made-up statistics.
    path = EXPOSITIONS / "metrics-v0-0.9.2.prom.gz"
    exposition = ExpositionReader().read(gzip.decompress(path.read_bytes()).decode())
    (reading,) = exposition.readings.values()
    (engine,) = drift.report(["--exposition", str(path), "--version", "0.9.2"]).engines

    assert {} == dict(exposition.problems)
    assert ("V0", 8, 5, 0.97, 3) == (
        engine.name,
        reading.running,
        reading.waiting,
        reading.kv_usage,
        reading.preemptions,
    )
    assert WRONG.get("0.9.2", set()) == {row.family.field for row in engine.rows if row.broken}


def test_gone(tmp_path, capsys):
    """Without the preemption counter the status is 1, and what was expected is named."""
    text = "".join(line for line in REAL.splitlines(keepends=True) if "vllm:num_preemptions" not in line)
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, text))

    assert 1 == status
    assert row(out, "preemptions") == ["-", "GONE: the table expects num_preemptions (V0 all, V1 0.8.0+)"]


def test_perhaps_renamed(tmp_path, capsys):
    """A new name that the table does not have is no rename; one that is alike is offered as perhaps."""
    text = REAL.replace("vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_ratio")
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, text))

    assert 1 == status
    assert row(out, "kv_usage")[1].startswith("GONE")
    assert "perhaps kv_cache_usage_ratio" in row(out, "kv_usage")[1]
    assert "`kv_cache_usage_ratio` (gauge)" in out


def test_renamed(tmp_path, capsys):
    """A name that the table has as an older one is a rename."""
    text = REAL.replace("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, text), "--version", "0.32.0")

    assert 1 == status
    assert row(out, "gaps")[0] == "`vllm:time_per_output_token_seconds`"
    assert row(out, "gaps")[1].startswith("RENAMED: the table expects inter_token_latency_seconds")


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        (("num_requests_waiting gauge", "num_requests_waiting counter"), "waiting", "CHANGED: it is a counter"),
        (('finished_reason="', 'why="'), "finished", "GONE: label finished_reason"),
        (
            ('reason="capacity"', 'reason="full"'),
            "waiting_capacity",
            "GONE: reason='capacity'; there is deferred, full",
        ),
        (("num_gpu_blocks=", "blocks="), "cache", ""),
        (('model_name="', 'model="'), "kv_usage", "GONE: label model_name"),
    ],
)
def test_labels_and_types(tmp_path, capsys, change, field, says):
    """A type or a label that is read and has changed breaks; one of two ways to state the cache's size does not."""
    old, new = change
    assert old in REAL
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, REAL.replace(old, new)))

    assert bool(says) == (status == 1)
    assert row(out, field)[1].startswith(says)


def test_cache_size_gone(tmp_path, capsys):
    """Without any label that states the cache's size the capacity is gone."""
    text = REAL.replace("num_gpu_blocks=", "a=").replace("kv_cache_size_tokens=", "b=")
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, text))

    assert 1 == status
    assert "GONE: the labels that state the cache's size" in row(out, "cache")[1]


def test_cache_labels_are_those_that_are_read():
    """Each label that is asked for of cache_config_info fills something of a reading."""
    for label in drift_table.CACHE_LABELS:
        text = f'vllm:cache_config_info{{{label}="7"}} 1\nvllm:num_requests_running{{model_name="m"}} 1\n'
        bare = 'vllm:cache_config_info{other="7"} 1\nvllm:num_requests_running{model_name="m"} 1\n'
        (with_it,) = ExpositionReader().read(text).readings.values()
        (without,) = ExpositionReader().read(bare).readings.values()

        assert with_it.cache != without.cache, label


def test_edges(tmp_path, capsys):
    """Other edges are told and break nothing, but for the one that counts pauses."""
    fewer = "".join(line for line in REAL.splitlines(keepends=True) if 'le="0.075"' not in line)
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, fewer))
    assert 0 == status
    assert "| `inter_token_latency_seconds` | edges" in out

    pauseless = "".join(
        line for line in REAL.splitlines(keepends=True) if not ("inter_token" in line and 'le="1.0"' in line)
    )
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, pauseless))
    assert 1 == status
    assert "GONE: the edge at 1 s" in row(out, "gaps")[1]


def test_new_and_only_in_the_table(tmp_path, capsys):
    """Families that kvpressure does not read are told of, and change no status."""
    text = REAL.replace("vllm:mm_cache_hits", "vllm:novelty")
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, text))

    assert 0 == status
    assert "Not in it (1): `novelty` (counter)." in out
    assert "Only in it (1): `mm_cache_hits`." in out


def test_before(tmp_path, capsys):
    """Another exposition can take the place of the table for everything that is not read."""
    before = tmp_path / "before.prom"
    before.write_text(REAL.replace("vllm:mm_cache_hits", "vllm:novelty"), encoding="utf-8")
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, REAL), "--before", before)

    assert 0 == status
    assert "Compared with `before.prom`" in out
    assert "Not in it (1): `mm_cache_hits` (counter)." in out


def test_nothing_to_compare(tmp_path, capsys):
    """Without statistics, without an exposition and without a package the status is 2, with one sentence."""
    status, out, err = ran(capsys, "--exposition", EXPOSITIONS / "vllm-0.32.0-nostats.prom.gz")
    assert (2, "") == (status, out)
    assert "--disable-log-stats" in err

    for words in (("--package", tmp_path), ("--exposition", tmp_path / "none"), ("--url", "http://127.0.0.1:1")):
        status, out, err = ran(capsys, *words)
        assert (2, "", 1) == (status, out, err.count("\n")), words


@pytest.mark.parametrize("words", [(), ("--url", "x", "--package", "y"), ("--package", ".", "--version", "new")])
def test_usage(words):
    """What is asked for must be one thing, with a version that is one."""
    with pytest.raises(SystemExit) as ended:
        drift.main(words)

    assert 2 == ended.value.code


def test_running_server(capsys):
    """A server is asked for its metrics and its version."""
    with running("lab", "--no-load", ready="/health") as lab:
        status, out, _ = ran(capsys, "--url", lab.url)

    assert 0 == status
    assert out.startswith("# Drift: vLLM 0.32.0\n")


def test_every_alias_says_when():
    """The versions of each spelling in the table are understood, so that none is passed over in silence."""
    for family in (*names.FAMILIES, *names.DRAWN, *names.ADVISED):
        for alias in family.aliases:
            assert drift_table.claims(alias), alias


@pytest.mark.parametrize(
    ("says", "release", "engine", "there"),
    [
        ("all", "0.6.0", "V0", True),
        ("0.9.2+", "0.9.1", "V1", False),
        ("0.9.2+", "0.9.2.post2", "V1", True),
        ("V0 to 0.8.2, hidden to 0.9.0.1", "0.8.2", "V0", True),
        ("V0 to 0.8.2, hidden to 0.9.0.1", "0.8.3", "V1", False),
        ("V1 0.7.1 to 0.11.2", "0.11.2", "V1", True),
        ("V1 0.7.1 to 0.11.2", "0.8.0", "V0", False),
        ("0.16.0+, deprecated 0.24.0", "0.33.0", "V1", True),
        ("V1 0.7.3 to 0.11.2; blocks instead of tokens before 0.9.0", "0.12.0", "V1", False),
    ],
)
def test_claims(says, release, engine, there):
    """A spelling's versions tell whether a release of an engine has it in sight."""
    claims = drift_table.claims(names.Alias("x", says))

    assert there == any(c.covers(drift_table.version(release), engine) and not c.hidden for c in claims)


def test_claims_that_are_not_understood():
    """A clause that is none is an error that names it, never skipped."""
    with pytest.raises(ValueError, match="'since long' is no clause"):
        drift_table.claims(names.Alias("x", "since long"))


def test_openmetrics_of_a_renamed_colon():
    """OpenMetrics, whose samples have an underscore where their TYPE has a colon, gives the same families."""
    text = (VERSIONS / "openmetrics-0.32.prom").read_text(encoding="utf-8")
    families = drift_found.exposed(text)

    assert "counter" == families["num_preemptions"].kind
    assert families["num_preemptions"].labels >= {"model_name", "engine"}
    assert not [name for name in families if name.endswith(("_created", "_bucket", "_total"))]


LOGS = ("text-0.18.1.log", "text-0.28.0.log", "json-0.32.0.log", "cri.log", "old-prefixes.log")


@pytest.mark.parametrize("name", [*LOGS, *(path.name for path in sorted((FIXTURES / "logs").glob("run-*.log")))])
def test_logs(name):
    """Every line of a recorded log that says something of a stream is understood."""
    found = drift_logs.lines((FIXTURES / "logs" / name).read_bytes())

    assert not found.unread
    assert found.messages["Received request"] == found.events["start"] > 0


def test_a_log_is_counted_and_not_quoted(tmp_path, capsys):
    """No name and no text of a log gets into the report, not even of a line that is not understood."""
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO 11-30 06:07:36 [logger.py:42] Received request secret-id, prompt: 'secret text'\n"
        "INFO 11-30 06:07:36 [logger.py:42] Generated response secret-id (streaming delta) now: 'secret text'\n",
        encoding="utf-8",
    )
    status, out, _ = ran(capsys, "--exposition", exposition(tmp_path, REAL), "--log", log)

    assert 1 == status
    assert "Generated response 1, Received request 1" in out
    assert "secret" not in out


def test_the_baseline_is_the_lab_s_table():
    """What is compared with is vLLM 0.32 as the lab serves it: a real exposition of it has the same names."""
    assert {one.name for one in exposed.EXPOSED} == drift_found.exposed(REAL).keys()


def test_real_expositions_are_whole():
    """Each saved exposition is read without a problem, and its server had finished requests."""
    for name in RUNS:
        text = gzip.decompress((EXPOSITIONS / name).read_bytes()).decode()
        exposition = ExpositionReader().read(text)

        assert {} == dict(exposition.problems)
        assert all(sum(reading.finished.values()) > 0 for reading in exposition.readings.values()), name


def test_committed_reports_are_fresh():
    """The reports on the servers among the fixtures, and the page that lists all, are what would be written now."""
    written = dict(drift_reports.servers()) | dict(drift_reports.recordings())

    assert written
    for name, text in (*written.items(), ("README.md", drift_reports.index())):
        assert text == (drift_reports.DOCS / name).read_text(encoding="utf-8"), f"stale: {name}"
