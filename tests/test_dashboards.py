"""The dashboards as files: what Grafana accepts, what is on them, and that they are what the configuration gives."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import generate
import jsonschema
import promql_parser
import pytest
from dashboards_help import DEFAULT, FILES, OTHERS, OURS, PAGES, QUERIES, RECORDED, UPSTREAM, filled, metrics, panels

from kvpressure.bundle import alerts, dash_parts, dashboards, records, write
from kvpressure.bundle.config import RunbooksConfig
from kvpressure.bundle.settings_pressure import StormConfig
from kvpressure.signals import CATALOGUE, KV_HEADROOM_REQUESTS

DASHBOARDS = generate.ROOT / "dashboards"
# Grafana's own (grafana/grafana-foundation-sdk, Apache-2.0), unchanged.
SCHEMA = json.loads(
    (Path(__file__).parent / "fixtures" / "schemas" / "grafana-dashboard.schema.json").read_text(encoding="utf-8")
)


# --- what Grafana accepts ---------------------------------------------------------------------------------------------


def test_the_committed_files_are_current():
    """Every file below dashboards/ that is generated is what the default configuration gives, and there is no other."""
    assert [] == write.stale(DASHBOARDS, FILES), "run `make generate`"
    assert set(FILES) == {path.name for path in DASHBOARDS.glob("*.json")}


@pytest.mark.parametrize("uid", PAGES)
def test_the_published_schema(uid):
    """Grafana's own schema, which takes no key that it does not know, has nothing to say."""
    validator = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)

    assert [] == [f"{list(fault.path)}: {fault.message[:200]}" for fault in validator.iter_errors(PAGES[uid])]


@pytest.mark.parametrize("uid", PAGES)
def test_it_imports_without_a_question(uid):
    """It has no inputs and no number of its own, and reads from a variable that Grafana fills by itself."""
    page = PAGES[uid]
    source = next(one for one in page["templating"]["list"] if one["name"] == "datasource")

    assert not {"__inputs", "__requires", "id", "version"} & set(page)
    assert (uid, "datasource", "prometheus") == (page["uid"], source["type"], source["query"])
    assert "current" not in source


@pytest.mark.parametrize("uid", PAGES)
def test_every_panel_has_its_data_source(uid):
    """Panel, query, variable and annotation name type and uid of the same source."""
    page, wanted = PAGES[uid], {"type": "prometheus", "uid": "${datasource}"}

    for panel in panels(page):
        assert wanted == panel["datasource"], panel["title"]
        assert all(wanted == target["datasource"] for target in panel.get("targets", ())), panel["title"]
    assert all(wanted == one["datasource"] for one in page["templating"]["list"] if one["type"] == "query")
    assert all(wanted == one["datasource"] for one in page["annotations"]["list"])


@pytest.mark.parametrize("uid", PAGES)
def test_ids_and_titles_are_unique(uid):
    """No two panels have one number or one title, no two queries of a panel one letter."""
    page = PAGES[uid]
    rows = [panel for panel in page["panels"] if panel["type"] == "row"]
    ids, titles = ([panel[key] for panel in (*rows, *panels(page))] for key in ("id", "title"))

    assert len(ids) == len(set(ids))
    assert len(titles) == len(set(titles))
    for panel in panels(page):
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(letters) == len(set(letters)), panel["title"]


@pytest.mark.parametrize("uid", PAGES)
def test_panels_do_not_overlap(uid):
    """Every panel has its own place, within the 24 columns."""
    places = [(panel["title"], panel["gridPos"]) for panel in PAGES[uid]["panels"]]
    for (one, a), (other, b) in itertools.combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (one, other)
    assert all(place["x"] + place["w"] <= 24 for _, place in places)


def test_uids_are_for_ever():
    """These addresses are in people's bookmarks."""
    assert {"kvpressure-oncall", "kvpressure-streams", "kvpressure-capacity", "kvpressure-exporter"} == set(PAGES)


@pytest.mark.parametrize("uid", PAGES)
def test_keys_are_sorted(uid):
    """The same dashboard is the same text."""
    assert FILES[f"{uid}.json"] == json.dumps(PAGES[uid], indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# --- what is on them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", PAGES)
def test_every_panel_explains_itself(uid):
    """A description of more than a few words, and a unit where there is a number."""
    for panel in panels(PAGES[uid]):
        if panel["type"] != "text":
            assert len(panel["description"]) > 60, panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["fieldConfig"]["defaults"].get("noValue") or panel["type"] == "table", panel["title"]


def test_an_axis_does_not_cut_off_what_lies_below_zero():
    """Headroom is below 0 where requests are too many, which is what somebody looks for."""
    seen = [
        panel
        for page in PAGES.values()
        for panel in panels(page)
        if panel["type"] == "timeseries"
        and any(KV_HEADROOM_REQUESTS.metric in target["expr"] for target in panel["targets"])
    ]

    assert seen
    assert all("min" not in panel["fieldConfig"]["defaults"] for panel in seen)


def test_links_lead_to_runbooks():
    """Every link of a panel is the runbook of one of the alerts, and every alert's is linked to from somewhere."""
    links = {link["url"] for page in PAGES.values() for panel in panels(page) for link in panel["links"]}

    assert {DEFAULT.runbooks.url.replace("{alert}", alert.name) for alert in alerts.alerts(DEFAULT)} == links


def test_the_first_screen_answers():
    """What tells page or not, and which engine, ends above the fold of 1440 by 900: 19 rows of the grid."""
    first = list(itertools.takewhile(lambda panel: panel["type"] != "row", PAGES["kvpressure-oncall"]["panels"]))

    assert {"stat", "state-timeline", "table"} == {panel["type"] for panel in first}
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in first) <= 19


def test_the_thresholds_are_those_of_the_alerts():
    """A number that is changed in the configuration is the new line and the new colour."""
    changed = dataclasses.replace(DEFAULT, preemption_storm=StormConfig(per_thousand=77.0))
    page = json.loads(dashboards.files(changed)["kvpressure-oncall.json"])
    found = [
        step["value"]
        for panel in panels(page)
        if panel["title"].startswith("Preemptions per 1000")
        for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    ]

    assert 2 == found.count(77)
    assert 50 not in found


@pytest.mark.parametrize("uid", PAGES)
def test_what_is_missing_does_not_look_good(uid):
    """Grafana paints a missing value as one below all thresholds: there stands no colour of health."""
    first = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]
        for panel in panels(PAGES[uid])
        if panel["type"] in ("stat", "gauge")
    }

    assert {dash_parts.UNKNOWN, "text"} >= {step["color"] for step in first.values()}, first


def test_runbooks_can_stand_elsewhere():
    """The pattern of the configuration is the one of the links."""
    moved = dataclasses.replace(DEFAULT, runbooks=RunbooksConfig(url="https://wiki.example.org/{alert}"))

    assert not [text for text in dashboards.files(moved).values() if "kvpressure/kvpressure/blob" in text]


@pytest.mark.parametrize("uid", PAGES)
def test_variables(uid):
    """Each variable is used, each one that is used exists, and a label that no series has shuts nothing out."""
    page = PAGES[uid]
    known = {one["name"]: one for one in page["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(page))) - {"__rate_interval", "__range", "__range_s", "__all"}

    assert set(known) == used
    assert all(one["allValue"] == ".*" for one in known.values() if one["multi"])
    assert {name for name, one in known.items() if not one["multi"]} <= {"datasource", "window"}


@pytest.mark.parametrize("uid", [uid for uid in PAGES if uid != "kvpressure-exporter"])
def test_rows_repeat_per_model(uid):
    """There is a row that is there once for each model, with panels under it."""
    rows = [panel for panel in PAGES[uid]["panels"] if panel["type"] == "row"]

    assert "model_name" in [row.get("repeat") for row in rows]


@pytest.mark.parametrize("uid", PAGES)
def test_alerts_are_marked(uid):
    """The alerts that fire are on the time axis of every dashboard, and the cursors are linked."""
    page = PAGES[uid]

    assert all('alertstate="firing"' in one["expr"] for one in page["annotations"]["list"])
    assert ["Pages", "Tickets"] == [one["name"] for one in page["annotations"]["list"]]
    assert 1 == page["graphTooltip"]


def test_a_colour_means_one_thing():
    """A text that stands for a state has one colour on all dashboards, and no colour is the only mark of a state."""
    colors: dict[str, set[str]] = {}
    for page in PAGES.values():
        for panel in panels(page):
            for mapping in panel["fieldConfig"]["defaults"]["mappings"]:
                for option in mapping["options"].values():
                    colors.setdefault(option["text"].partition(" · ")[0], set()).add(option["color"])
            for one in panel["fieldConfig"]["overrides"]:
                properties = {each["id"]: each["value"] for each in one["properties"]}
                if "color" in properties:
                    assert "custom.lineStyle" in properties, panel["title"]

    assert dict.fromkeys(colors, 1) == {text: len(found) for text, found in colors.items()}


# --- what they ask ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_queries_read_what_is_known(asked):
    """Every metric of a query is in the catalogue, in vLLM's names, recorded by the bundle, or one of four others."""
    assert metrics(promql_parser.parse(filled(asked.expr))) <= OURS | UPSTREAM | RECORDED | OTHERS


def test_every_signal_is_drawn_or_watched():
    """Every signal of the catalogue is on a panel, in an alert or in a record: the others need not be exposed."""
    expressions = [
        *(filled(asked.expr) for asked in QUERIES),
        *(alert.expr for alert in alerts.alerts(DEFAULT)),
        *(record.expr for record in records.records(DEFAULT)),
    ]
    read = set().union(*(metrics(promql_parser.parse(expression)) for expression in expressions))
    read = {re.sub("_(bucket|sum|count)$", "", name) for name in read}

    assert [] == sorted({signal.metric for signal in CATALOGUE} - read)


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_queries_read_no_more_than_is_drawn(asked):
    """A range is a rate's, or the one that is shown, and that is read once; nothing is read from before it."""
    for length, after in re.findall(r"\[([^\]]*)\](.{0,8})", asked.expr, re.DOTALL):
        once = asked.instant or after.startswith(" @ end()")
        # Who sees more, the tap or the log, is told by five minutes, as in the alerts, and at one moment.
        short = length == "5m" and asked.instant
        assert length == "$__rate_interval" or (length == "$__range" and once) or short, asked.expr
    assert " offset " not in asked.expr


def test_grafanalib_is_known_in_one_place():
    """No module but one imports it, and without it the command says what to install."""
    root = Path(dashboards.__file__).parents[1]
    assert ["grafana.py"] == [path.name for path in root.rglob("*.py") if "from grafanalib" in path.read_text("utf-8")]

    code = "import sys; sys.modules['grafanalib'] = None; from kvpressure.cli import main; sys.exit(main())"
    said = subprocess.run(
        [sys.executable, "-c", code, "bundle", "--out", "nowhere"], check=False, capture_output=True, text=True
    )

    assert (2, "kvpressure bundle: grafanalib is not installed: in a checkout, pip install '.[bundle]'\n") == (
        said.returncode,
        said.stderr,
    )
