"""
The whole way of a page, for real: lab, sidecar, Prometheus, Alertmanager and a webhook, each a process of its own.

Everything is `SPEED` times as fast as in life, by one factor: the lab's load, the sidecar's sampling, regime and
verdict, every duration of the bundle (how long a condition must hold, how long a notification waits), scraping and
evaluation. Each step stands to the others as it does by default, so the chain decides what it would decide in a storm
of a quarter of an hour. Only the exporter's windows cannot be shortened: all are the shortest one, 1m, which is twenty
minutes of the lab. What is meant to outlast its window is kept in proportion to it (`OUTLASTS`).
"""

import contextlib
import dataclasses
import time

import alerting
import pytest
from commands import free_port, get, running, wait_for

from kvpressure.bundle import alerts, config, write
from kvpressure.config import RegimeConfig, SampleConfig, VerdictConfig
from kvpressure.lab.scenarios import CALM, ONSET, STORM

SPEED = 20
SCRAPE = 15 / SPEED
OUTLASTS = {"inter_token_gap": {"hold": 120.0}}
"""Two of its windows, as by default: a burst is gone from the window before its gaps are a ticket."""

STORM_LASTS = 50.0
"""Seconds after the first preemption: by then the tickets would have come that the page silences."""


def bundle(hook):
    """The default bundle, `SPEED` times as fast, that tells this webhook."""
    sections = {}
    for what in dataclasses.fields(config.BundleConfig):
        section = what.default_factory()
        fast = {
            field.name: "1m" if field.metadata["kind"] == "window" else getattr(section, field.name) / SPEED
            for field in dataclasses.fields(section)
            if field.metadata["kind"] in ("duration", "window")
        }
        sections[what.name] = dataclasses.replace(section, **(fast | OUTLASTS.get(what.name, {})))
    urls = {"page_webhook_url": f"{hook.url}/page", "ticket_webhook_url": f"{hook.url}/ticket"}
    sections["notify"] = dataclasses.replace(sections["notify"], **urls)
    return config.BundleConfig(**sections)


def sidecar_flags(url):
    """The flags of a sidecar that is `SPEED` times as fast."""
    sample, regime, verdict = SampleConfig(), RegimeConfig(), VerdictConfig()
    durations = {
        "sample.interval": sample.interval,
        "sample.max-interval": sample.max_interval,
        "regime.churn-spread": regime.churn_spread,
        "regime.churn-pause": regime.churn_pause,
        "regime.onset-hold": regime.onset_hold,
        "verdict.window": verdict.window,
        "verdict.queue-seconds": verdict.queue_seconds,
    }
    flags = ["--vllm.url", f"{url}/metrics", "--sample.duty-budget", "1"]
    return flags + [word for name, value in durations.items() for word in (f"--{name}", f"{value / SPEED:g}s")]


def lab(scenario, port):
    """The lab under a scenario, on a port."""
    flags = ["--scenario", scenario.name, "--speed", str(SPEED), "--model", "m", "--log.file", "/dev/null"]
    return running("lab", *flags, ready="/health", port=port)


def preemptions(url):
    """What the lab has counted."""
    lines = get(f"{url}/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_preemptions_total"))


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """
    A storm that ends, and beside it an onset: what the webhook was told, and when the storm's first preemption was.

    The storm ends as it does in life: vLLM is started again with more memory for its cache, and the load is calm.
    """
    folder = tmp_path_factory.mktemp("chain")
    storm_port, onset_port = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        hook = stack.enter_context(alerting.webhook())
        fast = bundle(hook)
        write.write(folder, write.files(fast))
        manager = stack.enter_context(alerting.alertmanager(folder / "alertmanager.yml", folder))
        sidecars = {
            name: stack.enter_context(
                running("serve", *sidecar_flags(f"http://127.0.0.1:{port}"), ready="/-/ready")
            ).url
            for name, port in (("storm", storm_port), ("onset", onset_port))
        }
        scraped = alerting.written(scraping(folder, sidecars, manager), folder / "prometheus.yml")
        stack.enter_context(alerting.prometheus(scraped, folder))
        onset = stack.enter_context(lab(ONSET, onset_port))
        with lab(STORM, storm_port) as storm:
            wait_for(lambda: preemptions(storm.url) > 0, 30)
            began = time.monotonic()
            time.sleep(STORM_LASTS)
        stack.enter_context(lab(CALM, storm_port))
        wait_for(lambda: any(page.body["status"] == "resolved" for page in hook.of("/page")), 90)
        # Whatever comes late would come with the next flush.
        time.sleep(fast.notify.page_interval + 2)
        flood = preemptions(onset.url)
    return Story(hook, began, flood)


@dataclasses.dataclass
class Story:
    """What happened: notifications, the moment of the storm's first preemption, the preemptions of the onset."""

    hook: alerting.Webhook
    began: float
    flood: float


def scraping(folder, sidecars, manager):
    """Prometheus' configuration: both sidecars, each in a namespace of its own, all rules, and the Alertmanager."""
    targets = [
        {"targets": [url.removeprefix("http://")], "labels": {"namespace": name}} for name, url in sidecars.items()
    ]
    every = f"{SCRAPE * 1000:.0f}ms"
    return {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
            "evaluation_interval": every,
            "external_labels": {"cluster": "lab"},
        },
        "rule_files": [str(folder / "kvpressure.*.yml")],
        "scrape_configs": [{"job_name": "kvpressure", "static_configs": targets}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]},
    }


def test_a_storm_is_one_page_and_its_end(story, capsys):
    """
    From a storm that lasts and ends the webhook gets exactly one page, with one alert in it, and one resolve of it.

    Both are of the group of the model. The time from the first preemption to the webhook is printed.
    """
    pages = story.hook.of("/page", namespace="storm")
    seconds = pages[0].at - story.began
    lab_seconds = seconds * SPEED
    with capsys.disabled():
        # Asked for: how late is a page?
        print(f"\nfirst preemption to webhook: {seconds:.1f} s, which are {lab_seconds:.0f} s of the lab")  # noqa: T201

    assert ["firing", "resolved"] == [page.body["status"] for page in pages]
    assert [{alerts.PREEMPTION_STORM}, {alerts.PREEMPTION_STORM}] == [
        pages[0].names("firing"),
        pages[1].names("resolved"),
    ]
    assert {"cluster": "lab", "namespace": "storm", "model_name": "m"} == pages[0].body["groupLabels"]
    assert [1, 1] == [len(page.body["alerts"]) for page in pages]
    assert pages[0].body["groupKey"] == pages[1].body["groupKey"]


def test_an_onset_is_told_nowhere(story):
    """A flood that preempts hundreds of times and settles is no page, and no ticket either."""
    assert story.flood > 100
    assert [] == [one for one in story.hook.told if one.body["groupLabels"].get("namespace") == "onset"]


def test_what_the_page_implies_is_no_ticket(story):
    """Churn and a blocked queue go with every storm: while it pages, nobody gets a ticket for them."""
    tickets = {name for one in story.hook.of("/ticket", namespace="storm") for name in one.names()}

    assert {alerts.PREEMPTION_CHURN, alerts.MEMORY_BOUND, alerts.INTER_TOKEN_GAP_HIGH}.isdisjoint(tickets)
