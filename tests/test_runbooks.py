"""The runbooks: one per alert, all of one shape, and every query in them can be pasted and gives what it names."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kvpressure import config
from kvpressure.bundle import config as bundle_config
from kvpressure.bundle.alerts import alerts
from kvpressure.bundle.config import BundleConfig
from kvpressure.expose.families import labels_of
from kvpressure.family import PREFIX
from kvpressure.signals import CATALOGUE, REGIMES, VERDICTS, WINDOWS
from kvpressure.vllm import names
from kvpressure.vllm.stream import SOURCES

ALERTS = Path(__file__).parents[1] / "alerts"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ALERTS / "runbooks").glob("*.md"))}
PROSE = {path: path.read_text(encoding="utf-8") for path in sorted(ALERTS.rglob("*.md"))}
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
MEMORY = (
    "KVPressurePreemptionStorm",
    "KVPressureRequestsPausing",
    "KVPressureLivelock",
    "KVPressurePreemptionChurn",
    "KVPressureMemoryBound",
    "KVPressureCapacityLow",
    "raw",
)
"""Pages on which the cache is too small, so that the known mitigations are named in their order."""

SHARED = {"raw"}
"""Pages that several alerts share."""

# What Prometheus adds itself: to every series of a target, and the series of its own.
TARGET_LABELS = {"job", "instance", "namespace", "cluster"}
OWN_SERIES = {"up": set()}
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
VALUES = {
    "window": {name for name, _ in WINDOWS},
    "verdict": set(VERDICTS),
    "regime": set(REGIMES),
    "source": {*SOURCES, "engine"},
    "signal": {signal.name for signal in CATALOGUE},
    "footprint": {"mean", "p95"},
}
"""Labels whose values are few and known."""


def known_series():
    """Every series that a query may ask for -> its own labels."""
    known = dict(OWN_SERIES)
    for signal in CATALOGUE:
        for suffix in SUFFIXES.get(signal.kind, ("",)):
            known[signal.metric + suffix] = {*labels_of(signal), *(("le",) if suffix == "_bucket" else ())}
    for family in names.FAMILIES:
        for alias in family.aliases:
            labels = {names.MODEL_LABEL, names.ENGINE_LABEL, family.split, *(name for name, _ in alias.where)}
            for suffix in ("_total",) if family.kind == "counter" else SUFFIXES.get(family.kind, ("",)):
                known[names.PREFIX + alias.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return known


KNOWN = known_series()


def queries(text):
    """The PromQL blocks of a page, as they are pasted."""
    return [
        "\n".join(line.strip() for line in block.splitlines())
        for block in re.findall(r"^ *```promql\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    ]


QUERIES = [
    pytest.param(query, id=f"{path.stem}-{number}")
    for path, text in PROSE.items()
    for number, query in enumerate(queries(text), 1)
]


def sections(text):
    """The second-level headings of a page -> what stands below each."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def generated_rules():
    """Every alerting rule of the generated files, those of the raw group too."""
    for path in sorted([*ALERTS.glob("*.y*ml"), *ALERTS.glob("raw/*.y*ml")]):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in document.get("groups") or document.get("spec", {}).get("groups") or ():
            yield from (rule for rule in group["rules"] if "alert" in rule)


def selectors(query):
    """The (series, matchers) pairs of a query; matchers as (label, operator, value)."""
    for name, inner in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", query):
        yield name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', inner)


def series(query):
    """The names in a query that are neither function, keyword nor label."""
    bare = re.sub(r'"[^"]*"', "", query)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\boffset\s+\w+", "", bare)
    found = re.findall(r"(?<![\w:.])([a-zA-Z_][\w:]*)(?!\s*\()(?![\w:])", bare)
    return {name for name in found if name not in {"and", "or", "unless", "bool"}}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    """The pages are those of the alerts, and those that several share."""
    assert {alert.name for alert in alerts(BundleConfig())} == set(PAGES) - SHARED


def test_every_link_in_a_rule_leads_to_a_page():
    """What a person clicks at night exists, and no page is without a rule that leads to it."""
    linked = {rule["annotations"]["runbook_url"].rpartition("/")[2].removesuffix(".md") for rule in generated_rules()}

    assert set(PAGES) == linked


@pytest.mark.parametrize("name", PAGES)
def test_shape(name):
    """A page is called as its alert, has the four headings in order, and is short."""
    lines = PAGES[name].splitlines()

    assert lines[0].startswith("# ")
    assert name in SHARED or lines[0] == f"# {name}"
    assert HEADINGS == [line[3:] for line in lines if line.startswith("## ")]
    assert all(text.strip() for text in sections(PAGES[name]).values())
    assert len(lines) < 72


@pytest.mark.parametrize("name", PAGES)
def test_diagnosis(name):
    """The diagnosis names a dashboard, unless it cannot have one, and two to five queries."""
    diagnosis = sections(PAGES[name])["Diagnosis"]

    assert name in SHARED or re.search(r"\*\*KV pressure / (On call|Streams|Capacity|Exporter)\*\*", diagnosis)
    assert len(queries(diagnosis)) in range(2, 6)


@pytest.mark.parametrize("name", MEMORY)
def test_memory_mitigations_in_order(name):
    """Cap answers, then FP8, then more memory, only then fewer requests; and never more of them."""
    mitigation = sections(PAGES[name])["Mitigation"]
    steps = [
        "Cap `max_tokens`",
        "FP8 KV cache: `--kv-cache-dtype fp8`",
        "`--gpu-memory-utilization`",
        "harding",
        "nother replica",
        "lower `--max-num-seqs` or `--max-num-batched-tokens`",
    ]
    places = [mitigation.find(step) for step in steps]

    assert -1 not in places
    assert sorted(places) == places
    text = " ".join(mitigation.split())
    assert "accuracy check" in text
    assert "Raising `--max-num-seqs` makes it worse" in text


@pytest.mark.parametrize("name", ["KVPressurePreemptionStorm", "KVPressurePreemptionChurn", "KVPressurePinned", "raw"])
def test_what_is_no_fault(name):
    """Who comes because of a full cache or evicted prefixes is told that neither is a fault."""
    meaning = " ".join(sections(PAGES[name])["Meaning"].split())

    assert re.search(r"full cache is\s+\**not a fault", meaning)
    assert "not prefix eviction" in meaning or "evicting them is not preemption" in meaning


@pytest.mark.parametrize("query", QUERIES)
def test_query_names_what_exists(query):
    """Every series of a query is in the catalogue or is vLLM's, and every matcher is of a label and value it has."""
    asked = series(query)

    assert asked
    assert asked <= set(KNOWN)
    for name, matchers in selectors(query):
        for label, operator, value in matchers:
            assert label in KNOWN[name] | TARGET_LABELS
            if label in VALUES:
                assert set(value.split("|") if operator in ("=~", "!~") else [value]) <= VALUES[label]


def test_names_in_prose_exist():
    """A metric that is named in a sentence exists too."""
    found = {
        name for text in PROSE.values() for name in re.findall(rf"\b(?:{PREFIX}|{names.PREFIX})[a-z0-9_]+\b", text)
    }
    whole = {signal.metric for signal in CATALOGUE} | {
        names.PREFIX + alias.name for family in names.FAMILIES for alias in family.aliases
    }

    assert set() == found - set(KNOWN) - whole


def test_flags_in_prose_exist():
    """A flag of kvpressure's that is named exists; they are the ones with a dot."""
    known = {f"--{name}" for name, _ in config.settings()} | {"--config.file", "--config.check"}
    named = {flag for text in PROSE.values() for flag in re.findall(r"--[a-z]+\.[a-z][a-z.-]*[a-z]", text)}

    assert set() == named - known


def test_settings_of_the_bundle_in_prose_exist():
    """A key of the bundle's configuration that is named exists."""
    keys = {key for text in PROSE.values() for key in re.findall(r"`([a-z-]+\.[a-z-]+)`", text)}
    known = {name for name, _ in bundle_config.settings()}

    assert set() == {key for key in keys if key.partition(".")[0] in bundle_config.SECTIONS} - known


def test_queries_parse(tmp_path):
    """promtool parses every query."""
    rules = [{"record": f"test:query:{number}", "expr": query.values[0]} for number, query in enumerate(QUERIES)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run(["promtool", "check", "rules", str(file)], check=False, capture_output=True, text=True)

    assert checked.stderr == ""
    assert checked.returncode == 0


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.stem)
def test_links_resolve(path):
    """Every relative link leads to a file, and to a heading where it names one."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", PROSE[path]):
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            wrong.append(target)

    assert [] == wrong


def anchors(text):
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_line_is_the_one_that_is_explained():
    """The README argues for the thresholds that are the default, between a ticket at 10 and a page at 100."""
    lines = BundleConfig()
    text = " ".join(PROSE[ALERTS / "README.md"].split())

    assert f"it stands at {lines.preemption_storm.per_thousand:g}:" in text
    assert lines.preemption_churn.per_thousand <= 10 < lines.preemption_storm.per_thousand <= 100
    assert "What users see has the same line" in text
    assert lines.preemption_storm.per_thousand == 1000 * lines.requests_pausing.share


def test_the_readme_has_room_for_what_is_generated():
    """Each generated table has its two markers."""
    text = PROSE[ALERTS / "README.md"]

    for name in ("alerts", "numbers", "bench"):
        before, start, after = text.partition(f"<!-- generated: {name} -->\n")
        assert before
        assert start
        assert "<!-- end -->" in after.split("<!-- generated:")[0]
