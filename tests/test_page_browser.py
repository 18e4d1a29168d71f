"""The page in a real browser: it says what the state says, stays up to date, fits, and can be used by everybody."""

import dataclasses
import json
import re
import time

import pytest
from browser import WIDTHS, Stage, chromium
from commands import free_port, get, running, wait_for
from stages import short_stages
from test_page import HOSTILE

from kvpressure.derive.snapshot import Snapshot

STAGES = ("storm", "onset", "calm", "no_vllm", "gone", "missing", "sixteen")


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def stages():
    return short_stages()


@pytest.fixture
def opened(browser):
    """Opens a page; in the end nothing was complained of, and no request left its origin."""
    contexts, complaints, strangers = [], [], []

    def page(url, *, width="desk", **how):
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        context = browser.new_context(viewport=size, **how)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(dialog.message))
        tab.on("request", lambda asked: strangers.append(asked.url) if not mine(asked.url, url) else None)
        tab.goto(url)
        tab.complaints = complaints
        return tab

    yield page
    for context in contexts:
        context.close()
    assert complaints == []
    assert strangers == []


def mine(asked, url):
    return asked.startswith((url, "data:"))


def eventually(tab, expression, seconds=2.0):
    """Wait until an expression of JavaScript is true; asked from outside, as the page's own policy lets nobody in."""
    wait_for(lambda: tab.evaluate(expression), seconds)


def live(tab, seconds=3.0):
    """Wait until the page is live."""
    eventually(tab, "document.getElementById('live').textContent.startsWith('Live')", seconds)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", STAGES)
def test_every_state_fits(opened, stages, name, width):
    """Every state fits a phone and a desk: nothing is wider than the window, folded or not."""
    with Stage(stages[name]).served() as stage:
        tab = opened(stage.url, width=width)
        live(tab)
        tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

        assert 0 == tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert [] == tab.evaluate(
            "[...document.querySelectorAll('main *')].filter(each => !each.closest('.hidden') && "
            "each.getBoundingClientRect().right > innerWidth + 0.5).map(each => each.outerHTML.slice(0, 99))"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STAGES)
def test_everybody_can_use_it(opened, stages, name, scheme):
    """axe-core finds nothing wrong, whatever the state and the colours."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="there is no axe-core")
    with Stage(stages[name]).served() as stage:
        tab = opened(stage.url, color_scheme=scheme, bypass_csp=True)
        live(tab)
        tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

        found = axe.Axe().run(tab).response["violations"]
        assert [] == [(each["id"], node["html"]) for each in found for node in each["nodes"]]


def test_values_are_those_of_the_state(opened, stages):
    """Every number of the page is the state's, to the last digit, and so are verdict and regime."""
    with Stage(stages["storm"]).served() as stage:
        tab = opened(stage.url)
        live(tab)
        state = json.loads(get(f"{stage.url}/api/v1/state")[1])

        (engine,) = state["engines"]
        own, seen = (
            next(window for window in each["windows"] if window["window"] == "5m")
            for each in (engine, state["streams"][0])
        )
        shown = tab.evaluate(
            "Object.fromEntries([...document.querySelectorAll('.card data')].map(e => [e.dataset.field, e.value]))"
        )
        assert {name: float(value) for name, value in shown.items()} == {
            "preemptions_per_thousand": own["preemptions_per_thousand"],
            "pinned_ratio": own["pinned_ratio"],
            "gap_p99_seconds": seen["gap_p99_seconds"],
            "paused_ratio": seen["paused_ratio"],
        }
        card = tab.locator(".card")
        assert engine["verdict"] == card.get_attribute("data-verdict")
        assert engine["regime"] == card.get_attribute("data-regime")
        assert f"{engine['running']:.0f}" == tab.locator(".present dd b").first.inner_text()


def test_what_changes_is_shown(opened, stages):
    """A change is on the page within two seconds; what was unfolded and focused stays so."""
    stage = Stage(stages["sixteen"])
    with stage.served():
        tab = opened(stage.url)
        live(tab)
        tab.locator("#engine-0 > summary").click()
        first = stage.now.engines[0]
        assert not tab.locator("#engine-0 .present").get_by_text("4,321").count()

        stage.now = dataclasses.replace(
            stage.now,
            t=stage.now.t + 1.0,
            engines=(dataclasses.replace(first, waiting=4321.0, verdict="kv_memory"), *stage.now.engines[1:]),
        )

        eventually(tab, "document.querySelector('#engine-0 .present').textContent.includes('4,321')", 2.0)
        assert tab.locator("#engine-0").get_attribute("open") is not None
        assert "engine-0" == tab.evaluate("document.activeElement.closest('details').id")
        assert "KV cache too small" in tab.locator("#engine-0 .verdict").inner_text()
        # What is read aloud changes with a verdict, and else not.
        assert tab.locator("#summary").inner_text().startswith("5")
        assert tab.title().startswith("5")


def test_the_queue_alone_is_not_read_aloud(opened, stages):
    """A second that brings other numbers changes nothing in what is read aloud."""
    stage = Stage(stages["calm"])
    with stage.served():
        tab = opened(stage.url)
        live(tab)
        tab.evaluate(
            "window.heard = 0; for (const each of document.querySelectorAll('[role=status]')) new MutationObserver("
            "() => window.heard++).observe(each, {subtree: true, childList: true, characterData: true})"
        )
        (engine,) = stage.now.engines
        stage.now = dataclasses.replace(
            stage.now, t=stage.now.t + 1.0, engines=(dataclasses.replace(engine, waiting=4321.0),)
        )
        eventually(tab, "document.querySelector('.present').textContent.includes('4,321')", 2.0)

        assert 0 == tab.evaluate("window.heard")


def test_engines_come_and_go(opened, stages):
    """The page follows from no vLLM to one engine, to sixteen and back, without being loaded again."""
    stage = Stage(stages["no_vllm"])
    with stage.served():
        tab = opened(stage.url)
        live(tab)
        for name, cards, verdict in (
            ("storm", 1, "KV cache too small"),
            ("sixteen", 17, "Healthy"),
            ("no_vllm", 1, "vLLM does not answer"),
            ("calm", 1, "Healthy"),
        ):
            stage.now = stages[name][-1]
            eventually(
                tab,
                f"document.querySelectorAll('.card').length === {cards} && "
                f"document.querySelector('.verdict').textContent === '{verdict}'",
                3.0,
            )


def test_hostile_names(opened, stages):
    """A model's name that looks like markup is shown as it is, in the first answer and in what follows."""
    stage = Stage(stages["calm"])
    (engine,) = stage.now.engines
    with stage.served():
        stage.now = dataclasses.replace(stage.now, engines=(dataclasses.replace(engine, model_name=HOSTILE),))
        tab = opened(stage.url)
        assert HOSTILE == tab.locator("#engine-0 .who bdi").first.text_content()
        live(tab)
        stage.now = dataclasses.replace(
            stage.now, t=stage.now.t + 1, engines=(dataclasses.replace(engine, model_name=HOSTILE + "2"),)
        )
        eventually(tab, "document.querySelector('#engine-0 .who bdi').textContent.endsWith('2')", 2.0)

        assert HOSTILE + "2" == tab.locator("#engine-0 .who bdi").first.text_content()
        assert 1 == tab.evaluate("document.scripts.length")


def test_without_javascript(opened, stages):
    """Without JavaScript, and with curl, the verdict, its reasons, the numbers and their moment are there."""
    with Stage(stages["storm"]).served() as stage:
        tab = opened(stage.url, java_script_enabled=False)

        assert "KV cache too small" == tab.locator(".verdict").inner_text()
        assert "KV-blocked" in tab.locator(".why").inner_text()
        assert re.fullmatch(r"Values of 20\d\d-.* UTC", tab.locator("#live").inner_text())
        assert tab.locator(".tile .value").count() == 4
        assert "KV-blocked" in get(stage.url)[1]


def test_keyboard(opened, stages):
    """Every engine can be reached and unfolded by keys alone, and what has the focus is to be seen."""
    with Stage(stages["sixteen"]).served() as stage:
        tab = opened(stage.url)
        live(tab)
        for _ in range(30):
            tab.keyboard.press("Tab")
            if tab.evaluate("document.activeElement.localName") == "summary":
                break
        engine = tab.evaluate("document.activeElement.parentElement.id")
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert not tab.locator(f"#{engine}").evaluate("each => each.open")
        tab.keyboard.press("Enter")
        assert tab.locator(f"#{engine}").evaluate("each => each.open")


def test_structure(opened, stages):
    """There are landmarks and headings for a screen reader, and each chart says in words what it shows."""
    with Stage(stages["storm"]).served() as stage:
        tab = opened(stage.url)
        live(tab)

        assert [1, 1, 1] == [tab.locator(name).count() for name in ("body > header", "main", "footer")]
        headings = tab.evaluate("[...document.querySelectorAll('h1, h2')].map(each => each.textContent)")
        assert headings == [
            "kvpressure",
            "lab-8b, engine 0 KV cache too small",
            "Signals",
            "Sampler and observers",
        ]
        labels = tab.evaluate("[...document.querySelectorAll('svg')].map(each => each.getAttribute('aria-label'))")
        assert len(labels) == 4
        assert all(re.search("in the last 15.min: between .* and .*, now ", label) for label in labels)


def test_a_restart_of_the_exporter(browser):
    """Over a restart the page says that it is not live and of when its values are, then goes on by itself."""
    port = free_port()
    with running("lab", "--scenario", "storm", "--speed", "5", ready="/health") as lab:
        words = ("serve", "--vllm.url", f"{lab.url}/metrics", "--sample.interval", "200ms")
        tab = browser.new_page()
        try:
            with running(*words, ready="/-/ready", port=port) as sidecar:
                tab.goto(sidecar.url)
                live(tab)
                wait_for(lambda: tab.locator(".verdict").count() == 1, 10)
                assert tab.locator("#lost").inner_text() == ""
                began = time.monotonic()
                assert sidecar.stop() == 0
                assert time.monotonic() - began < 1.5
            eventually(
                tab,
                "/^Connection lost. Values of .*[0-9]:[0-9]{2}/.test(document.getElementById('lost').textContent)",
                8.0,
            )
            assert tab.locator(".verdict").count() == 1
            with running(*words, ready="/-/ready", port=port):
                live(tab, seconds=12)
                assert tab.locator("#lost").text_content() == ""
        finally:
            tab.close()


def test_too_many_pages(opened, stages):
    """A page that finds no room for updates says so, and shows what it was loaded with."""
    with Stage(stages["calm"]).served() as stage:
        tab = opened(stage.url)
        tab.route("**/api/v1/events", lambda route: route.fulfill(status=204))
        tab.reload()
        eventually(tab, "document.getElementById('lost').textContent === 'No connection for updates.'", 8.0)

        assert tab.locator(".verdict").inner_text() == "Healthy"
        tab.unroute("**/api/v1/events")
        live(tab, seconds=12)


def test_first_sample(opened):
    """Before the first sample the page says that it waits."""
    with Stage((Snapshot(1e9, up=None, interval=1.0),)).served() as stage:
        tab = opened(stage.url)
        live(tab)

        assert tab.locator("#summary").inner_text() == "Waiting for the first sample"
