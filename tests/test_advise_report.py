"""The reports of `kvpressure advise`: each says what the advice says, with a source, and invents nothing."""

import dataclasses
import json
import math
import re
import typing
from html.parser import HTMLParser
from pathlib import Path

import advices
import jsonschema
import pytest
from browser import chromium

from kvpressure.advise import advice as documents
from kvpressure.advise import report_html, report_json, report_sections, report_text, report_words
from kvpressure.advise.advice import Advice
from kvpressure.advise.seen import Figure

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "advise.schema.json").read_text(encoding="utf-8"))
SIZES = {"narrow": (400, 900), "desk": (1280, 900)}
VOID = {"meta", "link", "path", "line", "circle"}
NBSP = "\N{NO-BREAK SPACE}"


class Reader(HTMLParser):
    """A page's text, tags and ids; complains where a tag is not closed, or by another."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.addresses, self.text = [], set(), [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        assert len(given) == len(attrs)
        self.tags.add(tag)
        self.ids.extend(value for name, value in attrs if name == "id")
        self.links.extend(value[1:] for name, value in attrs if name == "href" and value.startswith("#"))
        self.addresses.extend(
            value for name, value in attrs if name in ("src", "href") and not value.startswith(("#", "data:"))
        )
        assert not any(name.startswith("on") for name in given)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self):
        return squeezed(" ".join(self.text))


def squeezed(text):
    """A text on one line."""
    return " ".join(text.replace(NBSP, " ").split())


def dense(text):
    """A text without any space, for comparing over line breaks and markup."""
    return "".join(text.split())


def plain(advice, width=100):
    """The report in the terminal, on one line."""
    return squeezed(report_text.text(advice, width))


def read(advice):
    """The report as HTML, on one line."""
    return Reader(report_html.page(advice)).words


def figures(part):
    """Every figure of a document."""
    if isinstance(part, Figure):
        yield part
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from figures(getattr(part, field.name))
    elif isinstance(part, tuple):
        for each in part:
            yield from figures(each)


def sources(advice):
    """Every source that a document names."""
    found = {figure.source for figure in figures(advice)}
    found |= {row.source for row in (advice.calibration.rows if advice.calibration else ())}
    found |= {shift.source for shift in advice.shifts}
    # Where nothing more is needed, the numbers of what there is are not told once more.
    return found - ({advice.need.bytes.source} if advice.need and advice.need.growth <= 0.0 else set())


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a report as a file; in the end nothing was complained of, and nothing else was asked for."""
    contexts, complaints, asked = [], [], []

    def page(advice, size="desk", **how):
        path = tmp_path / "report.html"
        path.write_text(report_html.page(advice), encoding="utf-8")
        context = browser.new_context(viewport=dict(zip(("width", "height"), SIZES[size], strict=True)), **how)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
        return tab

    yield page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("name", advices.ALL)
def test_every_source_is_in_every_report(name):
    """Whatever a document names as the source of a number stands in the terminal's report, in HTML and in JSON."""
    advice = advices.ALL[name]
    plainly = {dense("".join(c if c.isprintable() else " " for c in source)) for source in sources(advice)}
    if name != "unknown":
        assert len(plainly) > 1

    for said in (report_text.text(advice, 60), report_text.text(advice, 110), read(advice)):
        assert [] == [source for source in plainly if source not in dense(said)]
    assert sources(advice) <= set(_strings(json.loads(report_json.text(advice))))


@pytest.mark.parametrize("name", advices.ALL)
def test_every_value_leads_to_its_source(name):
    """Each value of sections 1 and 2 is followed by the number of its source, or says that it is unknown and why."""
    advice = advices.ALL[name]
    if name == "hostile":
        return
    text = plain(advice, 110)
    listed = dict(re.findall(r"\[(\d+)\] (\S.*?)(?= \[\d+\] \S| 2 What| 3 What| 4 How|$)", text))
    for line in (*advice.have, *advice.evidence):
        value = report_words.figure(line.figure).replace(NBSP, " ")
        if value == "unknown":
            assert f"{line.name} unknown: {line.figure.source}" in text
            continue
        ref = re.search(rf"{re.escape(line.name)} +{re.escape(value)} \[(\d+)\]", text)
        assert ref, line.name
        assert f"[{ref[1]}] {line.figure.source}" in text
        assert ref[1] in listed


def test_the_conclusion_comes_first():
    """Before anything else a reader learns what to do, then what there is, what limits, what would help, how sure."""
    for said in (plain(advices.FULL), read(advices.FULL)):
        places = [
            said.index(squeezed(part))
            for part in (
                "lab-8b, engine 0",
                "What to do first",
                advices.FULL.conclusion,
                "1 What you have",
                "2 What limits it",
                "3 What each change would do",
                "4 How sure this is",
            )
        ]
        assert places == sorted(places)


def test_what_is_not_known_is_said_and_never_zero():
    """A value that is None, or not a number, is unknown with its why, and the report has no number at all."""
    for said in (plain(advices.UNKNOWN), read(advices.UNKNOWN)):
        assert 3 == len(re.findall(r"\bunknown\b", said))
        assert "give --gpu-memory and --model-config" in said
        assert "No change is proposed." in said
        assert [] == re.findall(r"(?<![\w.])0\b", said.replace("kvpressure 0", ""))
    values = [figure["value"] for figure in _objects(json.loads(report_json.text(advices.UNKNOWN)), "estimate")]
    assert values == [None, None, None]


def test_an_estimate_is_labelled():
    """Where a figure is an estimate the value says so, and where it is none it does not."""
    for said in (plain(advices.FULL), read(advices.FULL)):
        assert "1,662 blocks (estimate)" in said
        assert "26,600 tokens (estimate)" not in said
        assert "37,240 tokens (estimate)" in said


def test_outcomes_with_their_bands():
    """Medians stand with the range of the seeds, and the targets' verdict beside them."""
    for said in (plain(advices.FULL, 110), read(advices.FULL)):
        assert "188 to 348" in said
        assert "3.40 s" in said
        assert "the median of 8 seeds" in said.lower()
    text = plain(advices.FULL, 110)
    assert re.search(r"E\. One more (?:replica )?0 +0 % +87 ms +520 ms +900 +yes", text)
    assert re.search(r"256 +412 +0 % +567 ms +3\.40 s +900 +no", text)


@pytest.mark.parametrize("width", [50, 80, 110])
@pytest.mark.parametrize("name", advices.ALL)
def test_lines_fit_the_terminal(name, width):
    """No line is wider than the terminal but for one that is a single long word of a query, which can be copied."""
    for line in report_text.text(advices.ALL[name], width).splitlines():
        assert len(line) <= width or len(line.split()) <= 2, line


def test_a_model_that_does_not_hold_shows_no_outcome():
    """Where the model did not reproduce what was observed, section 3 says so and shows none, even if there are some."""
    given = dataclasses.replace(advices.FAILS, changes=advices.CHANGES, need=advices.NEED, settings=advices.SETTINGS)
    for advice in (advices.FAILS, given):
        for said in (plain(advice), read(advice)):
            third = said[said.index("3 What each") : said.index("4 How sure")]
            assert "did not reproduce what was observed" in third
            assert "arithmetic only" in third
            assert "effect not known" in third
            assert [] == [told for told in ("188 to 348", "3.40 s", "tokens/s", "37,240") if told in third]
            assert "FP8 KV cache" in third
            assert "20 to 45" in said[said.index("4 How sure") :]


def test_a_model_that_nothing_was_held_against_says_so():
    """With a workload the outcomes are shown as the model's word alone."""
    for said in (plain(advices.UNHELD), read(advices.UNHELD)):
        assert "Nothing was observed that the simulation could be held against." in said[said.index("3 What each") :]
        assert "188 to 348" in said
        assert "not observed" in said[said.index("4 How sure") :]


def test_figures_that_are_only_shown():
    """A figure that was observed and is not judged is not said to be unobserved, and the other way round."""
    text = plain(advices.FULL)
    assert re.search(r"time with the cache full +52 % \[\d+\] +45 % +not judged", text)
    assert re.search(r"requests paused +unknown \[\d+\] +31 % +not observed", text)
    assert "bound: half to twice" in text
    assert "bound: shown only" not in text


def test_a_model_that_was_not_run_says_so():
    """Without a calibration section 3 is arithmetic, and section 4 says why."""
    for said in (plain(advices.NOT_RUN), read(advices.NOT_RUN)):
        assert "Nothing could be simulated, so what follows is arithmetic only." in said
        assert "no histogram of answer lengths was found" in said[said.index("4 How sure") :]


def test_where_nothing_works():
    """No change ends preemption and no setting is good: that is said of each, and no band is drawn."""
    for said in (plain(advices.HOPELESS), read(advices.HOPELESS)):
        assert 7 == said.count("does not end preemption")
        assert "No setting of --max-num-seqs keeps both targets; add capacity." in said
        assert "yes" not in said[said.index("3 What each") : said.index("4 How sure")]
    page = report_html.page(advices.HOPELESS)
    assert 'class="range"' not in page
    assert 'class="range"' in report_html.page(advices.FULL)


def test_a_change_that_makes_users_wait_is_not_called_good():
    """What ends preemption and breaks the other target says both; where nothing is preempted, nothing is ended."""
    text = plain(advices.FULL)
    assert "--max-num-seqs 24 instead of 256: ends preemption, but first tokens come late" in text
    assert "FP8 KV cache: ends preemption How" in text
    now = dataclasses.replace(advices.CHANGES[1], key="now", title="As it is")
    text = plain(dataclasses.replace(advices.FULL, changes=(now, *advices.CHANGES)))
    assert "As it is: preemption stays below its target" in text
    assert "25 % more memory for the KV cache: brings preemption about" in text


def test_a_healthy_engine():
    """Where nothing limits, the report says so, and that no more memory is needed."""
    for said in (plain(advices.HEALTHY), read(advices.HEALTHY)):
        assert "neither kv memory nor the concurrency cap" in said.lower()
        assert "What there is is enough." in said
        # How much less would do was not looked for, so what there is is not called the least.
        assert "The least KV memory" not in said
        assert re.search(r"preemptions per 1,000 requests +0 preemptions \[\d+\]", said)


def test_a_shift_is_told_with_its_moment():
    """Longer answers are told with before, after, since when, and the query."""
    for said in (plain(advices.FULL), read(advices.FULL)):
        assert (
            "The answers became 2.4 times longer: 104 tokens on average before, 250 tokens since 2026-09-22 04:06"
            in said
        )
    assert "No shift in the lengths" in plain(advices.HEALTHY)


def test_terms_are_explained_where_they_first_stand():
    """Each term that a report uses is explained once, and none that it does not use."""
    for name in ("full", "unknown", "not_run"):
        advice = advices.ALL[name]
        explained = [
            term
            for section in report_sections.sections(advice)
            for block in section.blocks
            if hasattr(block, "pairs")
            for term, _ in block.pairs
        ]
        assert len(explained) == len(set(explained))
        if name == "full":
            assert {"KV cache", "preemption", "TTFT", "--max-num-seqs", "max_tokens", "FP8 KV cache"} <= set(explained)
        if name == "unknown":
            assert "FP8 KV cache" not in explained
    said = plain(advices.FULL)
    assert said.index("TTFT: time to first token") < said.index("TTFT p95 [")


@pytest.mark.parametrize("name", advices.ALL)
def test_html_is_whole(name):
    """Tags are closed in order, ids are unique, links lead somewhere, and nothing is asked from elsewhere."""
    page = report_html.page(advices.ALL[name])
    found = Reader(page)

    assert page.startswith("<!DOCTYPE html>")
    assert len(found.ids) == len(set(found.ids))
    assert set(found.links) <= set(found.ids)
    assert [] == found.addresses
    assert "script" not in found.tags
    assert "@import" not in page
    assert "url(" not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", page)


def test_hostile_names():
    """Names from outside are text: no markup, nothing that steers a terminal, and JSON gives them back."""
    advice = advices.HOSTILE_NAMES
    text = report_text.text(advice, 100)
    assert not any(c in text for c in "\x1b\x07\u202e")
    assert "<script" not in report_html.page(advice)
    assert '<script src="//x">' in read(advice)
    said = report_json.text(advice)
    assert said.isascii()
    assert json.loads(said)["advice"]["model"] == advices.HOSTILE


@pytest.mark.parametrize("name", advices.ALL)
def test_json_is_the_document(name):
    """JSON has every field, to the last digit, is what the schema says, and knows null only where nothing is known."""
    advice = advices.ALL[name]
    found = json.loads(report_json.text(advice), parse_constant=pytest.fail)

    validator = jsonschema.validators.validator_for(SCHEMA)
    validator.check_schema(SCHEMA)
    validator(SCHEMA).validate(found)
    assert found["schema_version"] == report_json.SCHEMA_VERSION
    assert _rebuilt(Advice, found["advice"]) == _without_nan(advice)


def test_the_schema_knows_every_field():
    """The schema's objects have the fields of the document's parts, no more and no fewer, and asks for all."""
    parts = {name.lower(): kind for name, kind in vars(documents).items() if dataclasses.is_dataclass(kind)}
    for name, schema in SCHEMA["$defs"].items():
        if "properties" in schema:
            fields = [field.name for field in dataclasses.fields(parts.pop(name))]
            assert fields == list(schema["properties"])
            assert fields == schema["required"]
    assert parts == {}


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (None, "tokens", "unknown"),
        (math.inf, "tokens", "unknown"),
        (26600.0, "tokens", "26,600 tokens"),
        (1.0, "requests", "1 request"),
        (24.1818, "requests", "24.18 requests"),
        (524288.0, "bytes per token", "512 KiB per token"),
        (13.3 * 1024**3, "bytes", "13.3 GiB"),
        (0.0, "bytes", "0 bytes"),
        (0.374, "", "37 %"),
        (2.31, "", "2.31"),
        (401.0, "", "401"),
        (0.052, "seconds", "52 ms"),
        (3.1, "s", "3.10 s"),
        (1.0, "tokens/s", "1 tokens/s"),
        (21600.0, "seconds", "6 h"),
    ],
)
def test_numbers_in_words(value, unit, said):
    """Numbers are told with their unit as people read them; what is not finite is not known."""
    assert said == report_words.quantity(value, unit).replace(NBSP, " ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["full", "fails", "hopeless", "unknown", "hostile"])
def test_everybody_can_read_it(opened, name, scheme):
    """axe-core finds nothing wrong on a desk and on a phone, whatever the colours."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="there is no axe-core")
    for size in SIZES:
        tab = opened(advices.ALL[name], size, color_scheme=scheme)
        found = axe.Axe().run(tab).response["violations"]
        assert [] == [(each["id"], node["html"]) for each in found for node in each["nodes"]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", advices.ALL)
def test_it_fits(opened, name, size):
    """Nothing is wider than the window, and no two letterings of a plot lie on each other."""
    tab = opened(advices.ALL[name], size, java_script_enabled=True)

    assert 0 == tab.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert [] == tab.evaluate(
        "[...document.querySelectorAll('main *')].filter(each => each.getBoundingClientRect().right > innerWidth + 0.5"
        " && !each.closest('thead')).map(each => each.outerHTML.slice(0, 99))"
    )
    assert [] == tab.evaluate(
        "[...document.querySelectorAll('svg.plot')].flatMap(svg => { const texts = [...svg.querySelectorAll('text')];"
        " const boxes = texts.map(text => text.getBoundingClientRect());"
        " return boxes.flatMap((a, i) => boxes.slice(i + 1).map((b, j) => [a, b, texts[i], texts[i + 1 + j]]))"
        " .filter(([a, b]) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom)"
        " .map(([a, b, c, d]) => c.textContent + ' on ' + d.textContent) })"
    )


def test_without_javascript(opened):
    """Without JavaScript everything is there, and a link to a source leads to it."""
    tab = opened(advices.FULL, java_script_enabled=False)
    tab.locator("a.refs").first.click()

    assert tab.url.endswith("#source-1")
    assert tab.locator("#source-1 code").inner_text() == advices.FULL.have[0].figure.source


def _strings(part):
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict | list):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _strings(each)


def _objects(part, key):
    """Every object in JSON that has this key."""
    if isinstance(part, dict):
        if key in part:
            yield part
        for each in part.values():
            yield from _objects(each, key)
    elif isinstance(part, list):
        for each in part:
            yield from _objects(each, key)


def _rebuilt(kind, part):
    """The document that JSON was made of."""
    if part is None:
        return None
    options = [each for each in typing.get_args(kind) if each not in (type(None), ...)]
    if typing.get_origin(kind) is tuple:
        return tuple(_rebuilt(options[0], each) for each in part)
    if options and dataclasses.is_dataclass(options[0]):
        kind = options[0]
    if not dataclasses.is_dataclass(kind):
        return part
    hints = typing.get_type_hints(kind)
    return kind(**{name: _rebuilt(hints[name], value) for name, value in part.items()})


def _without_nan(part):
    """The document with None where a number is not finite."""
    if isinstance(part, float):
        return part if math.isfinite(part) else None
    if isinstance(part, tuple):
        return tuple(_without_nan(each) for each in part)
    if dataclasses.is_dataclass(part):
        return type(part)(**{f.name: _without_nan(getattr(part, f.name)) for f in dataclasses.fields(part)})
    return part


@pytest.mark.parametrize("columns", [1, 4, 19])
def test_a_terminal_that_is_too_narrow(columns):
    """It gets lines that are too long, and no fault."""
    assert "Capacity advice" in report_text.text(advices.FULL, columns).replace("\n", " ")
