"""The tap's signals are what users feel: a storm, seen by the users themselves and by the sidecar between them."""

import json
from pathlib import Path

import pytest
from commands import free_port, get, kvpressure, running, wait_for
from live_truth import compare

from kvpressure.lab.truth import Record, Totals

SECONDS = 52
"""With what it takes to start and to ask, all of it lies in the last minute."""


def streamed(*times):
    """A record whose tokens came at these times."""
    return Record(0, 0.0, 1, 1, ts=list(times), token_ts=list(times), done=True)


def state_of(paused, p99, source="tap"):
    """A sidecar's state with these two figures."""
    windows = [{"window": "1m", "paused_ratio": paused, "gap_p99_seconds": p99}]
    return {"streams": [{"model_name": "m", "source": source, "windows": windows}]}


@pytest.mark.parametrize(
    ("state", "disagreements"),
    [
        (state_of(0.5, 2.0), []),
        (state_of(0.509, 2.19), []),
        (state_of(0.52, 2.0), ["paused share: the users saw 0.5, the sidecar says 0.52"]),
        (state_of(0.5, 2.3), ["gap p99: the users saw 2.0, the sidecar says 2.3"]),
        (
            state_of(None, None),
            [
                "paused share: the users saw 0.5, the sidecar says None",
                "gap p99: the users saw 2.0, the sidecar says None",
            ],
        ),
        (state_of(0.5, 2.0, "log"), ["the sidecar knows 0 models from its tap, the users asked one"]),
        ({}, ["the sidecar knows 0 models from its tap, the users asked one"]),
    ],
)
def test_a_disagreement_is_told(state, disagreements):
    """A point of the share and a tenth of p99 are let pass, more is a sentence."""
    assert disagreements == compare([streamed(1.0, 1.5, 3.5), streamed(1.0, 1.5)], state)


def test_the_tap_says_what_the_users_saw(tmp_path):
    """
    After most of a minute of storm, paused share and gap p99 of the last minute are those of the users' own clocks.

    Nobody fails, many pause, and the sidecar has counted every request that got a token.
    """
    truth, tap = tmp_path / "truth.jsonl", f"127.0.0.1:{free_port()}"
    with running("lab", "--no-load", "--scenario", "storm", ready="/health") as lab:
        flags = ["--vllm.url", f"{lab.url}/metrics", "--tap.listen", tap, "--tap.upstream", lab.url]
        with running("serve", *flags, ready="/-/ready") as sidecar:
            wait_for(lambda: get(f"http://{tap}/health")[0] == 200, 10)
            users = ["--users", f"http://{tap}", "--duration", f"{SECONDS}s", "--truth.file", str(truth)]
            told = kvpressure("lab", *users, timeout=SECONDS + 40)
            # The last of them have just left; the tap learns of it with the next turn of its loop.
            wait_for(lambda: open_streams(sidecar.url) == 0, 5)
            state = json.loads(get(f"{sidecar.url}/api/v1/state")[1])
    assert (0, "") == (told.returncode, told.stderr)
    records = [Record.of(json.loads(line)) for line in Path(truth).read_text(encoding="utf-8").splitlines()]
    totals = Totals()
    for record in records:
        totals.add(record)

    assert 0 == totals.failed
    assert totals.paused > 20
    assert totals.streamed == pytest.approx(sum(stream["streamed"] for stream in state["streams"]), abs=3)
    assert [] == compare(records, state)


def open_streams(url):
    """Streams that the sidecar follows now."""
    return sum(stream["open"] for stream in json.loads(get(f"{url}/api/v1/state")[1])["streams"])
