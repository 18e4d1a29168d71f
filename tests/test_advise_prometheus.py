"""What advice sees in a real Prometheus, filled with the past of the lab and of made-up engines."""

import argparse
import base64
import contextlib
import http.server
import importlib.util
import itertools
import json
import math
import re
import socket
import ssl
import threading

import advise_past
import dash_history
import pytest
from advise_past import BEGIN, END, LENGTH, past
from alert_traces import Engine, made_up
from commands import free_port
from dripping import BEGINNINGS, dripping
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.advise.access import Access, access_of, add_arguments
from kvpressure.advise.lengths import behind_mean
from kvpressure.advise.promapi import Prometheus
from kvpressure.advise.prometheus import seen_by
from kvpressure.advise.promql import duration, quoted, selector
from kvpressure.advise.recorded import seen_of
from kvpressure.advise.seen import AdviseError
from kvpressure.advise.told import Told
from kvpressure.recording import Row
from kvpressure.vllm.stream import StreamEvent

ODD = 'a "b"\\c\nd{e="f"}é'
"""A model's name that is all that PromQL minds."""


def named(rows, name):
    """The same of a model of another name."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return [
        Row(row.t, row.body and row.body.replace('model_name="m"', f'model_name="{escaped}"'), 0.01) for row in rows
    ]


def watched_storm():
    """Users of the engine with the odd name: a token a second, and some of them pause for three."""
    for number in range(60):
        for token in range(20):
            t = number * 25.0 + token + (3.0 if token > 10 and number % 4 == 0 else 0.0)
            yield StreamEvent("token", t, number)
        yield StreamEvent("end", t, number)


@pytest.fixture(scope="module")
def storm():
    """Half an hour of the lab's storm, from second 0 on."""
    return advise_past.storm()


@pytest.fixture(scope="module")
def url(tmp_path_factory, storm):
    """A Prometheus that knows half an hour of several engines."""
    folder = tmp_path_factory.mktemp("past")
    minutes = LENGTH / 60
    restarted = made_up(
        Engine(preemptions=0.2, finished=5.0, gaps=0.1, model="restarted"), minutes=minutes, restart=12.1
    )
    silent = [
        *made_up(Engine(finished=4.0, model="silent"), minutes=minutes),
    ]
    silent = [row for row in silent if not 600 <= row.t < 1200]
    two = made_up(
        Engine(preemptions=0.01, model="two"), Engine(preemptions=0.3, model="two", engine="1"), minutes=minutes
    )
    odd = named(made_up(Engine(finished=2.0), minutes=minutes), ODD)
    everything = [
        *past(storm, "a"),
        *past(made_up(Engine(model="lab-8b", finished=1.0), minutes=minutes), "b"),
        *past(restarted, "c", upstream=False),
        *past(silent, "d"),
        *past(two, "f"),
        *past(odd, "g", events=list(watched_storm())),
    ]
    # OpenMetrics wants the samples of a series in order, not those of all.
    dash_history.load(folder, iter(everything))
    with dash_history.serving(folder) as address:
        yield address


def seen(url, **given):
    """Half an hour of one engine."""
    return seen_by(url, **{"range_seconds": float(LENGTH), "end": END, **given})


def total(found, name):
    """The sum of one field over all slots."""
    return sum(getattr(slot, name) for slot in found.slots)


def observations(found, name):
    """How many observations a histogram has over all slots."""
    return sum(getattr(slot, name).count for slot in found.slots)


def test_same_as_the_recording(url, storm):
    """A Prometheus that scraped every 15 seconds tells of a storm what the samples of every second tell."""
    found, recorded = seen(url, model="lab-8b"), seen_of(storm, source="")

    # The first scrape is what all is counted from.
    begin = found.slots[0].end - found.slots[0].seconds - BEGIN
    since = seen_of([row for row in storm if row.t >= begin], source="")
    assert found.slots[-1].end == END
    for name in ("preemptions", "finished", "tokens"):
        assert total(found, name) == total(since, name) > 0
    for name in ("prompts", "answers", "first_tokens"):
        assert observations(found, name) == observations(since, name) > 0
    assert sum(s.answers.sum for s in found.slots) == sum(s.answers.sum for s in since.slots)
    for name in ("observed", "pinned", "blocked"):
        assert math.isclose(total(found, name), total(since, name), abs_tol=20)
    assert total(found, "pinned") > 0.2 * LENGTH
    assert found.server.capacity.value == recorded.server.capacity.value
    assert found.server.block_size.value == recorded.server.block_size.value
    assert found.server.max_model_len.value == recorded.server.max_model_len.value
    assert {slot.verdict for slot in found.slots[30:]} == {"kv_memory"}


def test_slots_follow_each_other(url):
    """Slots are as long as the time between scrapes, and each begins where the one before ended."""
    slots = seen(url, model="lab-8b").slots

    assert {slot.seconds for slot in slots} == {15.0}
    assert len(slots) >= LENGTH / 15 - 2
    assert all(b.end - b.seconds == a.end for a, b in itertools.pairwise(slots))


def test_gauges(url):
    """Means, peak and usage are those of the samples in Prometheus."""
    slots = seen(url, model="restarted").slots

    assert {(slot.running, slot.waiting, slot.peak, slot.usage) for slot in slots} == {(20.0, 0.0, 20.0, 0.5)}


def test_coarser_steps(url):
    """A range of days has steps of minutes, and still every request in it."""
    fine, coarse = seen(url, model="lab-8b"), seen(url, model="lab-8b", range_seconds=2 * 86400.0)

    assert max(slot.seconds for slot in coarse.slots) == 120.0
    assert sum(slot.seconds for slot in coarse.slots) >= LENGTH - 240
    assert total(coarse, "preemptions") == pytest.approx(total(fine, "preemptions"), rel=0.15)
    assert any(note.startswith("There are samples for") for note in coarse.notes)


def test_every_query_can_be_pasted(url):
    """The source of each field is a query that Prometheus takes as it stands and has an answer to."""
    found = seen(url, model="lab-8b")

    fields = {name for name in type(found.slots[0]).__slots__ if name not in ("end", "seconds")}
    sums = {f"{field}_sum" for field in ("prompts", "answers", "gaps", "first_tokens")}
    assert set(found.sources) == fields - {"streamed", "paused"} | sums
    for field, query in found.sources.items():
        assert dash_history.ask(url, "query", query=query, time=END)["result"], field
    for field in ("prompts", "answers"):
        query = behind_mean(found.sources, field)
        (one,) = dash_history.ask(url, "query", query=query, time=END)["result"]
        assert 1.0 < float(one["value"][1]) < 10_000.0, field
    for figure in (found.server.capacity, found.server.replicas):
        (one,) = dash_history.ask(url, "query", query=figure.source, time=END)["result"]
        assert float(one["value"][1]) == figure.value


def test_sources_tell_ours_from_theirs(url):
    """The sidecar's series come first; only what it does not tell is vLLM's own."""
    sources = seen(url, model="lab-8b").sources
    theirs = {field for field, query in sources.items() if "vllm:" in query}

    assert theirs == {"gaps", "gaps_sum", "first_tokens", "first_tokens_sum"}


def test_restart(url):
    """Over a restart of vLLM there is no negative and no giant number: all slots read alike."""
    slots = seen(url, model="restarted").slots

    assert all(73 <= slot.finished <= 77 for slot in slots)
    assert all(2 <= slot.preemptions <= 4 for slot in slots)
    assert all(min(slot.prompts.counts) >= 0 for slot in slots)


def test_without_vllm_s_own_series(url):
    """Where only the sidecar is scraped its histograms give the lengths, and a note says what is not known."""
    found = seen(url, model="restarted")

    assert found.sources["prompts"].startswith("kvpressure_request_prompt_tokens_bucket{")
    assert all(slot.prompts.edges == (200.0, 500.0, 1000.0, 2000.0, math.inf) for slot in found.slots)
    assert all(slot.prompts.sum == pytest.approx(300 * slot.prompts.count) for slot in found.slots)
    assert all(slot.first_tokens is None for slot in found.slots)
    assert any("the time to the first token is not known" in note for note in found.notes)
    assert found.server.capacity.value == 27_200.0


def test_without_the_sidecar(tmp_path):
    """Where only vLLM is scraped its own series are taken, and a note says what cannot be known."""
    raw = made_up(Engine(preemptions=0.1, finished=3.0, model="raw", gaps=0.2), minutes=10, restart=5.1)
    dash_history.load(tmp_path, past(raw, "e", own=False))
    with dash_history.serving(tmp_path) as address:
        found = seen_by(address, range_seconds=600.0, end=BEGIN + 600)

    # What vLLM counted between the last scrape and its restart is known to nobody: that slot reads low.
    assert sorted(slot.finished for slot in found.slots)[1] >= 43
    assert all(20 <= slot.finished <= 47 for slot in found.slots)
    assert all(0 <= slot.preemptions <= 3 for slot in found.slots)
    assert all(slot.pinned is None and slot.blocked is None and slot.verdict == "" for slot in found.slots)
    assert {slot.usage for slot in found.slots} == {0.5}
    assert all(slot.answers.count == slot.finished for slot in found.slots)
    assert all(slot.gaps.counts[-3] > 0 for slot in found.slots)
    assert found.server.capacity.value == 27_200.0
    assert found.server.capacity.source.startswith("num_gpu_blocks 1700 * block_size 16 of vllm:cache_config_info{")
    assert found.server.replicas.value == 1.0
    assert any(note.startswith("There are no series of kvpressure") for note in found.notes)


def test_gap(url):
    """Ten minutes that nobody scraped are in no slot, nor is what was counted in them."""
    found = seen(url, model="silent")

    for slot in found.slots:
        assert slot.end <= BEGIN + 600 or slot.end - slot.seconds >= BEGIN + 1200
        assert slot.finished <= 4.4 * slot.seconds
    assert any("what happened then is in no slot" in note for note in found.notes)


def test_most_preemptions_are_chosen(url):
    """Of all engines that Prometheus knows the one with most preemptions is taken, and the others are named."""
    found = seen(url)
    note = next(note for note in found.notes if "which had the most preemptions" in note)

    assert (found.model, found.engine) == ("lab-8b", "0")
    assert "This is engine 0 of model lab-8b at a:10938" in note
    assert "engine 1 of model two at f:10938" in note


def test_engine_of_a_model(url):
    """A model's engine is taken by its rank; one of several ranks is chosen where none is given."""
    assert seen(url, model="two").engine == "1"
    other = seen(url, model="two", engine="0")

    assert other.engine == "0"
    assert total(other, "preemptions") < 40
    assert other.server.replicas.value == 2.0


def test_replicas(url):
    """Engines of one model on other hosts are replicas; the one with preemptions is taken."""
    found = seen(url, model="lab-8b")

    assert found.server.replicas.value == 2.0
    assert found.server.replicas.source.startswith("count(max without (pid) (kvpressure_requests_running{")


def test_odd_name(url):
    """A model's name is data, whatever it holds: quotes, braces, backslashes and lines are escaped in each query."""
    found = seen(url, model=ODD)

    assert found.model == ODD
    assert total(found, "finished") == pytest.approx(2 * LENGTH, rel=0.02)
    for field, query in found.sources.items():
        assert dash_history.ask(url, "query", query=query, time=END)["result"], field


def test_streams(url):
    """Users' pauses are those of the observer that is believed."""
    found = seen(url, model=ODD)

    assert 'source="tap"' in found.sources["paused"]
    assert total(found, "streamed") == pytest.approx(60, abs=2)
    assert total(found, "paused") == pytest.approx(15, abs=1)
    assert found.sources["gaps"].startswith("kvpressure_inter_token_gap_seconds_bucket{")


def test_told(url):
    """What the flags say of the server counts, and is named as its own source."""
    server = seen(url, model="lab-8b", told=Told(max_num_seqs=32, replicas=5)).server

    assert (server.max_num_seqs.value, server.replicas.value) == (32.0, 5.0)
    assert server.replicas.source == "--replicas 5, as given"


def test_no_series(url):
    """Without a series in the range the error names the URL and the range, and says what to do."""
    with pytest.raises(AdviseError) as raised:
        seen_by(url, range_seconds=3600.0, end=BEGIN - 86400)

    assert str(raised.value) == (
        f"{url} has no series of kvpressure and none of vLLM in the 1h before 2027-01-14 07:00 UTC; let it scrape "
        "the sidecar, or give another --range"
    )


def test_no_such_model(url):
    """A model that Prometheus does not know is an error that lists those that it does."""
    with pytest.raises(AdviseError) as raised:
        seen(url, model="x")

    assert str(raised.value) == (
        f'Prometheus at {url} knows no engines of model x, but engine 0 of model a "b"\\c?d{{e="f"}}é at g:10938, '
        "engine 0 of model lab-8b at a:10938, engine 0 of model lab-8b at b:10938, engine 0 of model restarted at "
        "c:10938, engine 0 of model silent at d:10938, engine 0 of model two at f:10938, engine 1 of model two at "
        "f:10938"
    )


# --- HTTP -------------------------------------------------------------------------------------------------------------


def test_nothing_listens():
    """Where nothing listens the error says so, and names the URL."""
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(AdviseError) as raised:
        seen_by(address)

    assert str(raised.value) == (
        f"{address}: nothing accepts a connection there; is Prometheus running, and is the port right?"
    )


def test_path_without_an_api(url):
    """A path below which there is no API is told from a Prometheus."""
    with pytest.raises(AdviseError, match=r"/nowhere: it answered with status 404: there is no Prometheus API there"):
        seen_by(f"{url}/nowhere", end=END)


def test_query_that_prometheus_refuses(url):
    """What Prometheus says of a query that it refuses is passed on, with the query."""
    with (
        Prometheus(url, Access()) as api,
        pytest.raises(AdviseError, match=r"refused a query: .*exceeded maximum resolution.*\(query: kvpressure_up\)"),
    ):
        api.over("kvpressure_up", BEGIN - 1e6, END, 1.0)


EMPTY = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


@contextlib.contextmanager
def answering(status, body, *, tls=None):
    """A server that answers everything so; its URL, and the headers of each request."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(dict(self.headers))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"<html>", "its answer is not that of Prometheus' API; is this a Prometheus, and is the path right?"),
        (200, b"[1]", "its answer is not that of Prometheus' API; is this a Prometheus, and is the path right?"),
        (200, b'{"status":"success","data":{}}', "its answer is not what Prometheus' API gives"),
        (200, EMPTY.replace(b"[]", b'[{"metric":{},"value":[1,"x"]}]'), "its answer is not what Prometheus' API gives"),
        (302, b"", "it redirects elsewhere (status 302); give the URL that it redirects to"),
        (401, b"Unauthorized", "it answered with status 401: it wants a user or a token; see --help for the flags"),
        (418, b"", "it answered with status 418: is this a Prometheus?"),
        (503, b"Service Unavailable", "it answered with status 503: it is not ready; try again later"),
    ],
)
def test_what_is_no_prometheus(status, body, sentence):
    """Whatever else answers is one sentence that names the URL and says what to do."""
    with answering(status, body) as (address, _), pytest.raises(AdviseError) as raised:
        seen_by(address)

    assert str(raised.value) == f"{address}: {sentence}"


def test_error_of_prometheus():
    """An error of Prometheus' own is passed on, without lines or what cannot be printed."""
    body = json.dumps({"status": "error", "errorType": "execution", "error": "timed\nout\x07"}).encode()
    with (
        answering(422, body) as (address, _),
        pytest.raises(AdviseError, match=r"refused a query: timed out\? \(query"),
    ):
        seen_by(address)


def test_nothing_comes_back_that_was_told_in_confidence(tmp_path):
    """A proxy that answers with the headers that it got does not bring a token or a header onto the terminal."""
    token = tmp_path / "token"
    token.write_text("SECRETTOKEN")
    said = {"status": "error", "error": "got Bearer SECRETTOKEN and HEADERSECRET"}
    access = Access(bearer_token_file=str(token), headers=(("X-K", "HEADERSECRET"),))
    with answering(400, json.dumps(said).encode()) as (address, _), pytest.raises(AdviseError) as raised:
        seen_by(address, access=access)

    assert "refused a query: got *** and ***" in str(raised.value)


@pytest.mark.parametrize("where", ["warnings", "error"])
def test_a_password_does_not_come_back_either(tmp_path, where):
    """Neither as it is nor as it was sent, in an error or in a warning."""
    password = tmp_path / "password"
    password.write_text("PASSWORD")
    sent = base64.b64encode(b"me:PASSWORD").decode()
    said = f"PASSWORD {sent}"
    body = {"status": "error", "error": said} if where == "error" else json.loads(EMPTY) | {"warnings": [said]}
    with (
        answering(200, json.dumps(body).encode()) as (address, _),
        Prometheus(address, Access(user="me", password_file=str(password))) as api,
    ):
        try:
            api.at("up", 1.0)
            told = " ".join(api.notes)
        except AdviseError as fault:
            told = str(fault)

    assert "*** ***" in told
    assert "PASSWORD" not in told


@pytest.mark.parametrize(
    "body",
    [
        b'{"status":"success","warnings":5,"data":{"result":[]}}',
        b'{"status":"success","data":{"result":[{"metric":{},"values":[]}]}}',
        b'{"status":"success","data":{"result":[{"metric":{"model_name":"\\ud800"},"value":[1,"1"]}]}}',
        b'{"status":"success","data":{"result":[{"metric":{},"value":[1' + b"0" * 400 + b',"1"]}]}}',
    ],
)
def test_odd_answers_end_in_a_sentence(body):
    """What no Prometheus answers is told in one, never as a fault of the program."""
    with answering(200, body) as (address, _), pytest.raises(AdviseError) as raised:
        seen_by(address)

    assert "\n" not in str(raised.value)


def test_answer_without_end():
    """An answer that is too large is refused before it fills the memory."""
    with (
        answering(200, b" " * (65 * 1024 * 1024)) as (address, _),
        pytest.raises(AdviseError, match="more than 67108864 bytes; choose a shorter range"),
    ):
        seen_by(address)


def test_silent_server():
    """A server that takes a connection and says nothing is given up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(AdviseError, match=r"it did not answer within 0\.2 s; choose a shorter range"):
            seen_by(address, access=Access(timeout=0.2))


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_answer_that_drips(begin):
    """A head, the length of a part, or a body that comes by the byte is given up as silence is."""
    with dripping(begin) as address, pytest.raises(AdviseError, match=r"it did not answer within 0\.5 s; choose a sh"):
        seen_by(address, access=Access(timeout=0.5))


def test_credentials(tmp_path):
    """A token, a password and headers are sent as the files hold them; what was asked for stays in the error alone."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    basic = "Basic " + base64.b64encode(b"me:s3cret").decode()
    for access, expected in (
        (Access(bearer_token_file=str(secret)), "Bearer s3cret"),
        (Access(user="me", password_file=str(secret), headers=(("X-Scope-OrgID", "7"),)), basic),
    ):
        with answering(200, EMPTY) as (address, requests), pytest.raises(AdviseError) as raised:
            seen_by(address, access=access)
        assert all(request["Authorization"] == expected for request in requests)
        assert "s3cret" not in str(raised.value)
    assert requests[0]["X-Scope-OrgID"] == "7"


def test_file_that_is_not_there():
    """A file with a token that cannot be read is an error that names the flag and the file."""
    nowhere = "/no/where"
    with pytest.raises(AdviseError, match="prometheus-bearer-token-file: /no/where cannot be read"):
        seen_by("http://127.0.0.1:1", access=Access(bearer_token_file=nowhere))
    with pytest.raises(AdviseError, match="prometheus-ca-file: /no/where cannot be read"):
        seen_by("https://127.0.0.1:1", access=Access(ca_file=nowhere))


def parsed(*words):
    """What the flags say."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return access_of(parser.parse_args(words))


def test_flags():
    """Each flag has its place; without any, nothing is sent."""
    assert parsed() == Access()
    file = "/a/file"
    words = ["--prometheus-user", "me", "--prometheus-password-file", file, "--prometheus-header", "A: b:c"]
    assert parsed(*words, "--prometheus-ca-file", "c", "--prometheus-insecure-skip-verify") == Access(
        user="me", password_file=file, headers=(("A", "b:c"),), ca_file="c", insecure=True
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--prometheus-user", "me"], "--prometheus-user and --prometheus-password-file belong together; give both"),
        (["--prometheus-header", "s3cret"], '--prometheus-header is not a header like "X-Scope-OrgID: 1"'),
        (["--prometheus-header", "A: s3\ncret"], '--prometheus-header is not a header like "X-Scope-OrgID: 1"'),
        (
            ["--prometheus-user", "u", "--prometheus-password-file", "p", "--prometheus-bearer-token-file", "t"],
            "--prometheus-user and --prometheus-bearer-token-file exclude each other; give one",
        ),
    ],
)
def test_flags_that_do_not_go(words, sentence):
    """Flags that do not go together are one sentence, without what a header holds."""
    with pytest.raises(AdviseError) as raised:
        parsed(*words)

    assert str(raised.value) == sentence


def test_tls(authority):
    """A certificate counts where its authority is trusted, and is refused where it is not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("prometheus", "127.0.0.1"))
    with answering(200, EMPTY, tls=context) as (address, _):
        with pytest.raises(AdviseError, match="has no series of kvpressure"):
            seen_by(address, access=Access(ca_file=authority.file))
        with pytest.raises(AdviseError, match="has no series of kvpressure"):
            seen_by(address, access=Access(insecure=True))
        with pytest.raises(AdviseError, match="TLS failed: the certificate is not trusted"):
            seen_by(address)


def test_proxy_of_the_environment(monkeypatch):
    """The environment's proxy is used, for a Prometheus is often far away, and a note says so without its password."""
    with answering(200, EMPTY) as (proxy, requests):
        monkeypatch.setenv("http_proxy", proxy.replace("//", "//me:s3cret@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with Prometheus("http://prometheus.invalid:9090", Access()) as api:
            assert api.at("up", 0.0) == []
            (note,) = api.notes

    assert len(requests) == 1
    assert note == (
        "Prometheus was asked through the proxy 127.0.0.1, as the environment says; set no_proxy to go without it."
    )


PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.mark.parametrize(
    "proxy",
    ["http://[s3cret", "http://me:s3cret@:3128", "http://me:s3cret@proxy:port", "ftp://me:s3cret@proxy:3128", "//"],
)
def test_proxy_that_is_none(monkeypatch, proxy):
    """A proxy that cannot be read is one sentence, without what stands there: it could be a password."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(AdviseError) as raised:
        seen_by("http://prometheus.invalid:9090")

    assert str(raised.value) == (
        "the proxy that the environment names for Prometheus is not the URL of one; correct it, or set no_proxy to go "
        "without it"
    )


@pytest.mark.skipif(importlib.util.find_spec("socks") is not None, reason="SOCKS can be used here")
def test_proxy_of_socks(monkeypatch):
    """A proxy that speaks SOCKS is said to be the reason, and not that the answer was broken off."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://me:s3cret@127.0.0.1:9")
    with pytest.raises(AdviseError) as raised:
        seen_by("http://prometheus.invalid:9090")

    assert str(raised.value) == (
        "http://prometheus.invalid:9090: the environment names a SOCKS proxy, which is not supported; set no_proxy to "
        "go without it"
    )


def test_host_that_is_none(monkeypatch):
    """A name that no host can have is not an answer that was broken off."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AdviseError) as raised:
        seen_by("http://prometheus..svc:9090")

    assert str(raised.value) == (
        "http://prometheus..svc:9090: its host, or that of the proxy which the environment names, has a name that no "
        "host can have"
    )


def test_no_netrc(monkeypatch, tmp_path):
    """A .netrc sends no password that nobody meant for Prometheus."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with answering(200, EMPTY) as (address, requests), Prometheus(address, Access()) as api:
        api.at("up", 0.0)

    assert "Authorization" not in requests[0]


def test_warnings():
    """What Prometheus warns of becomes a note, once."""
    body = EMPTY.replace(b'"success"', b'"success","warnings":["a store is\\n gone"]')
    with answering(200, body) as (address, _), Prometheus(address, Access()) as api:
        api.at("up", 0.0)
        api.at("up", 0.0)

    assert api.notes == ["Prometheus warned: a store is gone."]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("prometheus:9090", "prometheus:9090 is not the URL of a Prometheus; give one like http://prometheus:9090"),
        (
            "http://me:s3cret@host",
            "the URL of Prometheus holds a password, which others can see; give it in a file instead",
        ),
        *(
            (url, "the URL of Prometheus holds a password, which others can see; give it in a file instead")
            for url in ("me:s3cret@host:9090", "http:/me:s3cret@host", "http://me:1/s3cret@host", "//me:s3cret@host")
        ),
        (
            "host:9090?token=s3cret",
            "the URL of Prometheus must end with its path, without ? and #; give it as in http://host:9090",
        ),
        (
            "http://host?x=s3cret",
            "the URL of Prometheus must end with its path, without ? and #; give it as in http://host:9090",
        ),
        ("http://host:x", "the URL of Prometheus cannot be read; give one like http://prometheus:9090"),
    ],
)
def test_url_that_is_none(given, sentence):
    """A URL that cannot be used is one sentence, without the password in it."""
    with pytest.raises(AdviseError) as raised:
        seen_by(given)

    assert str(raised.value) == sentence


def test_path_of_the_api(url):
    """A slash or the API's own path at the URL's end does no harm."""
    with Prometheus(f"{url}/api/v1/", Access()) as api:
        assert api.at("vector(1)", 0.0)[0].points == ((0.0, 1.0),)


# --- PromQL -----------------------------------------------------------------------------------------------------------


@given(value=st.text())
def test_values_are_quoted(value):
    """Whatever a label holds is one string of PromQL."""
    text = quoted(value)
    inner = text[1:-1]

    assert text[0] == text[-1] == '"'
    assert "\n" not in text
    assert re.fullmatch(r'(?:[^"\\\n]|\\[\\"n])*', inner)
    assert re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], inner) == value


def test_selector():
    """A selector names its labels in order, and none where there is none."""
    assert selector("x", {"b": "1", "a": ""}) == 'x{a="",b="1"}'
    assert selector("x", {}) == "x"
    assert [duration(seconds) for seconds in (0, 90, 86_400, 90_061)] == ["0s", "1m30s", "1d", "1d1h1m1s"]
