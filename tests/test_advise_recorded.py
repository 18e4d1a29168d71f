"""What advice sees in a recording."""

import gzip
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
from alert_traces import Engine, made_up, within
from lab_rows import START
from lab_rows import rows as sampled

from kvpressure import recording, replay
from kvpressure.advise.recorded import seen_in, seen_of
from kvpressure.advise.seen import AdviseError, Figure
from kvpressure.advise.told import Told
from kvpressure.config import Config
from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.lab.simulate import simulate
from kvpressure.recording import Row

ABOUT = "a test"
RECORDINGS = Path(__file__).parent / "fixtures" / "recordings"


@pytest.fixture(scope="module")
def storm():
    """Ten minutes of the lab's storm, a sample a second."""
    return tuple(sampled(SCENARIOS["storm"], 600.0))


def total(seen, name):
    """The sum of one field over all slots."""
    return sum(getattr(slot, name) for slot in seen.slots)


def observations(seen, name):
    """How many observations a histogram has over all slots."""
    return sum(getattr(slot, name).count for slot in seen.slots)


@pytest.mark.parametrize("name", ["arm_roomy", "arm_tight_2x3", "compute_stall", "control_500_16"])
def test_same_totals_as_replay(recorded, name):
    """All slots of a real vLLM's recording together are what the sidecar has counted at its end."""
    rows = recorded(name)
    seen = seen_of(rows, source=ABOUT)
    whole = replay.summarise(rows, Config(), recording_interval(rows)).last.engines[0]

    assert total(seen, "preemptions") == whole.preemptions > 0 or name in ("compute_stall", "control_500_16")
    assert total(seen, "finished") == sum(whole.finished.values())
    assert total(seen, "tokens") == whole.generation_tokens
    assert math.isclose(total(seen, "observed"), whole.kv_observed_seconds)
    assert math.isclose(total(seen, "pinned"), whole.kv_pinned_seconds, abs_tol=1e-6)
    assert math.isclose(total(seen, "blocked"), whole.kv_blocked_seconds, abs_tol=1e-6)
    assert observations(seen, "prompts") == whole.prompt_lengths.count
    assert sum(slot.answers.sum for slot in seen.slots) == whole.output_lengths.sum
    assert (seen.slots[-1].regime, seen.slots[-1].verdict) == (whole.regime, whole.verdict)
    assert seen.server.capacity.value == whole.kv_capacity_tokens


def recording_interval(rows):
    """What ``kvpressure replay`` takes for the interval of these rows."""
    gaps = sorted(b.t - a.t for a, b in itertools.pairwise(rows[:200]))
    return max(Config().sample.interval, gaps[len(gaps) // 2])


def test_slots_follow_each_other(recorded):
    """Each slot begins where the one before ended, and is 15 s long but for the last, a sample more or less."""
    slots = seen_of(recorded("arm_tight_2x3"), source=ABOUT).slots

    assert len(slots) > 3
    assert all(math.isclose(b.end - b.seconds, a.end, abs_tol=1e-6) for a, b in itertools.pairwise(slots))
    assert all(abs(slot.seconds - 15.0) <= 1.0 for slot in slots[:-1])


def test_lab(storm):
    """The slots of a scenario are what its model really did: preempted, finished, first tokens, peak and lengths."""
    seen = seen_of(storm, source=ABOUT)
    truth = simulate(SCENARIOS["storm"], 600.0)
    first = storm[0].t - START

    # What happened before the first sample is counted from there, as everywhere.
    assert total(seen, "preemptions") == sum(s.counted for s in truth.steps if first < s.now <= 600.0)
    assert total(seen, "finished") == sum(s.finished for s in truth.steps if first < s.now <= 600.0)
    assert max(slot.peak for slot in seen.slots) <= max(s.running + s.waiting for s in truth.steps)
    began = {request for s in truth.steps if s.now <= 600.0 for request in s.tokens}
    early = {request for s in truth.steps if s.now <= first for request in s.tokens}
    assert observations(seen, "first_tokens") == len(began - early)
    assert all(slot.prompts.count == slot.finished for slot in seen.slots)
    assert {slot.verdict for slot in seen.slots[20:]} == {"kv_memory"}


def test_server(storm):
    """Capacity, block size and the longest request come from vLLM's own words, each with its source."""
    server = seen_of(storm, source=ABOUT).server
    config = SCENARIOS["storm"].server

    assert server.capacity == Figure(
        float(config.num_gpu_blocks * config.block_size),
        "tokens",
        "kv_cache_size_tokens of vllm:cache_config_info in a test",
    )
    assert server.block_size.value == config.block_size
    assert server.max_model_len.value == config.max_model_len
    assert server.max_model_len.estimate
    assert server.replicas.value == 1.0
    assert server.max_num_seqs == Figure(None, "requests", "vLLM's metrics do not tell it; say --max-num-seqs")


def test_told(storm):
    """What the flags say counts, and is named as its own source."""
    told = Told(max_num_seqs=64, max_model_len=4096, max_num_batched_tokens=2048, replicas=3)
    server = seen_of(storm[:60], source=ABOUT, told=told).server

    assert server.max_num_seqs == Figure(64.0, "requests", "--max-num-seqs 64, as given")
    assert (server.max_model_len.value, server.max_num_batched_tokens.value, server.replicas.value) == (4096, 2048, 3)


def test_every_field_has_its_source(storm):
    """Each field of a slot that is a number or a word has a phrase on where it comes from, and no other has."""
    seen = seen_of(storm[:60], source=ABOUT)

    assert set(seen.sources) == set(type(seen.slots[0]).__slots__) - {"end", "seconds"}


def steady(**given):
    """Ten minutes of an engine whose rates never change."""
    return made_up(Engine(preemptions=0.4, finished=5.0, gaps=0.2), minutes=10, **given)


def test_restart_is_corrected():
    """A restart of vLLM gives no negative and no giant number: every slot reads as all others do."""
    slots = seen_of(steady(restart=5.2), source=ABOUT).slots

    assert {round(slot.seconds) for slot in slots} == {15}
    for slot in slots:
        assert 74 <= slot.finished <= 76
        assert 5 <= slot.preemptions <= 7
        assert slot.tokens == 15_000
        assert 74 <= slot.prompts.count <= 76
        assert min(slot.answers.counts + slot.gaps.counts) >= 0
    assert [note for note in seen_of(steady(restart=5.2), source=ABOUT).notes if "1 times" in note]


def test_gap_is_in_no_slot():
    """Minutes without an answer are in no slot, nor is what was counted in them, and a note says how long it was."""
    seen = seen_of(steady(silent=(3, 6)), source=ABOUT)

    for slot in seen.slots:
        assert not (slot.end > 3 * 60 and slot.end - slot.seconds < 6 * 60 - 1)
        assert slot.finished <= 5.1 * slot.seconds
    assert sum(slot.seconds for slot in seen.slots) == pytest.approx(600 - 181, abs=1.5)
    assert any(note.startswith("181 s were not watched") for note in seen.notes)


def test_restart_within_a_gap():
    """A vLLM that is away for minutes and comes back with its counters at 0 gives ordinary slots around the gap."""
    seen = seen_of(steady(silent=(3, 6), restart=5), source=ABOUT)

    assert all(4.9 * slot.seconds <= slot.finished <= 5.1 * slot.seconds for slot in seen.slots)


def test_edges_that_change(vllm_text):
    """Where a restart brings other edges a slot ends before it, and no slot mixes the two."""
    old = [Row(float(t), vllm_text(gaps={"0.1": t, "+Inf": t}), 0.01) for t in range(20)]
    new = [Row(20.0 + t, vllm_text(gaps={"0.2": t, "0.5": t, "+Inf": t}), 0.01) for t in range(20)]
    slots = seen_of(old + new, source=ABOUT).slots

    assert [slot.gaps.edges for slot in slots] == [(0.1, math.inf)] * 2 + [(0.2, 0.5, math.inf)] * 2
    assert [slot.gaps.counts for slot in slots] == [(15, 0), (4, 0), (10, 0, 0), (9, 0, 0)]


def test_most_preemptions_are_chosen():
    """Of several engines the one with most preemptions is taken, and a note names it and the others."""
    engines = [Engine(preemptions=p, engine=str(n), finished=9 - n) for n, p in enumerate((0.0, 0.5, 0.1))]
    seen = seen_of(made_up(*engines, minutes=2), source="the recording r")

    assert (seen.model, seen.engine, seen.server.replicas.value) == ("m", "1", 3.0)
    assert seen.notes[0] == (
        "the recording r knows 3 engines. This is engine 1 of model m, which had the most preemptions. "
        "The others: engine 0 of model m, engine 2 of model m."
    )


def test_most_requests_are_chosen():
    """Where none was preempted it is the engine with the most requests."""
    engines = [Engine(engine=str(n), finished=finished) for n, finished in enumerate((1.0, 3.0))]
    seen = seen_of(made_up(*engines, minutes=1), source=ABOUT)

    assert seen.engine == "1"
    assert "which finished the most requests, and none was preempted" in seen.notes[0]


def test_chosen_by_name():
    """An engine that is asked for is taken without a note on the choice."""
    engines = [Engine(preemptions=0.5), Engine(model="other", engine="0")]
    seen = seen_of(made_up(*engines, minutes=1), source=ABOUT, model="other")

    assert seen.model == "other"
    assert not any("others" in note for note in seen.notes)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"engine": "7"}, "a test knows no engine 7, but engine 0 of model m, engine 0 of model n"),
        ({"model": "x"}, "a test knows no engines of model x, but engine 0 of model m, engine 0 of model n"),
        ({"model": "m", "engine": "1"}, "a test knows no engine 1 of model m, but engine 0 of model m, engine 0 of m"),
    ],
)
def test_not_there(asked, sentence):
    """An engine that is not in the recording is an error that lists those that are."""
    rows = list(made_up(Engine(), Engine(model="n"), minutes=0.1))
    with pytest.raises(AdviseError) as raised:
        seen_of(rows, source=ABOUT, **asked)

    assert str(raised.value).startswith(sentence[:80])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "r has no sample of a vLLM; record its /metrics, a row per sample"),
        ([Row(0.0, "python_info 1\n", 0.1), Row(1.0, None, 0.1)], "r has no sample of a vLLM"),
        (list(itertools.islice(made_up(Engine()), 1)), "r has a single sample of engine 0 of model m; advice needs"),
    ],
)
def test_too_little(rows, sentence):
    """A recording without two samples of an engine is an error, and says what is missing."""
    with pytest.raises(AdviseError) as raised:
        seen_of(rows, source="r")

    assert str(raised.value).startswith(sentence)


def test_unknown_is_none(vllm_text):
    """What vLLM does not tell is None in every slot, never 0, and a note names all of it."""
    text = vllm_text(preemptions=None, finished=None, kv_usage=None, tokens=None, waiting=1)
    seen = seen_of([Row(float(t), text, 0.01) for t in range(31)], source=ABOUT)

    for slot in seen.slots:
        unknown = {name for name in type(slot).__slots__ if getattr(slot, name) in (None, "")}
        assert unknown == set(type(slot).__slots__) - {"end", "seconds", "running", "waiting", "peak"}
    assert seen.server.capacity.value is None
    assert "preemptions, tokens generated, KV usage, time with the cache full, time blocked for KV" in seen.notes[-1]


def test_peak_between_means():
    """A burst of one second shows in the slot's peak, though hardly in its mean."""
    engine = Engine(running=within(0.5, 0.51, 200, 10), waiting=1)
    slots = seen_of(made_up(engine, minutes=1), source=ABOUT).slots

    assert [slot.peak for slot in slots] == [11, 201, 11, 11]
    assert slots[0].running == 10


def test_slow_samples():
    """Samples that are further apart than a slot make a slot each, and none of it is taken for a gap."""
    slow = [row for row in made_up(Engine(), minutes=10) if row.t % 40 == 0]
    seen = seen_of(slow, source=ABOUT)

    assert [slot.seconds for slot in seen.slots] == [40.0] * 15
    assert all(slot.finished == 200 for slot in seen.slots)
    assert not any("not watched" in note for note in seen.notes)


def test_engine_that_was_forgotten():
    """An engine that is away for twenty minutes is counted anew, and nothing of that time is in a slot."""
    both = list(made_up(Engine(), Engine(engine="1"), minutes=40))
    alone = list(made_up(Engine(), minutes=40))
    rows = [row if not 600 <= row.t < 1800 else alone[int(row.t)] for row in both]
    seen = seen_of(rows, source=ABOUT, engine="1")

    assert sum(slot.seconds for slot in seen.slots) == pytest.approx(2400 - 1201, abs=1)
    assert all(slot.finished <= 5.1 * slot.seconds for slot in seen.slots)


def test_several_servers_in_turn():
    """Two servers that answer in turn behind one address are told of."""
    one, two = (list(made_up(Engine(finished=rate), minutes=2)) for rate in (9.0, 1.0))
    rows = [(one if n % 2 else two)[n] for n in range(121)]

    assert any("several servers must have answered in turn" in note for note in seen_of(rows, source=ABOUT).notes)


def test_capacity_that_changes():
    """Where the server came back with more memory a note tells both, and the last one counts."""
    before, after = list(made_up(Engine(), minutes=1)), list(made_up(Engine(), minutes=1, blocks=3000))
    rows = before + [Row(row.t + 61, row.body, 0.01) for row in after]
    seen = seen_of(rows, source=ABOUT)

    assert seen.server.capacity.value == 48_000.0
    assert "The KV capacity changed within the recording: 27,200, then 48,000 tokens." in " ".join(seen.notes)


# --- files ------------------------------------------------------------------------------------------------------------


def test_folder_with_a_log():
    """The log beside a recording tells which users paused; the source is the folder."""
    seen = seen_in(str(RECORDINGS / "chat_cri"))

    assert seen.source == f"the recording {RECORDINGS / 'chat_cri'}"
    assert 0 < total(seen, "paused") <= total(seen, "streamed")


def test_log_without_time(tmp_path):
    """A log whose lines are stamped to the second measures no pause: it is left out, and a note says so."""
    shutil.copy(RECORDINGS / "arm_roomy" / "metrics.jsonl.gz", tmp_path)
    fixture = next(Path(__file__).parent.joinpath("fixtures", "logs").rglob("*"))
    assert fixture.exists()
    line = "(APIServerProcess pid=1) INFO 11-30 05:00:01 [logger.py:55] Generated response chatcmpl-1 (streaming delta)"
    (tmp_path / "server.log").write_text(f"{line}: output: '', output_token_ids: [1], finish_reason: None\n" * 3)
    seen = seen_in(str(tmp_path))

    assert all(slot.paused is None for slot in seen.slots)
    assert any(note.endswith("its lines are stamped to the second, which measures no pause.") for note in seen.notes)


def test_lines_that_cannot_be_read(tmp_path):
    """Broken lines are skipped and told of, a few of them word for word."""
    rows = [json.dumps({"t": row.t, "took": 0.01, "body": row.body}) for row in made_up(Engine(), minutes=1)]
    with gzip.open(tmp_path / "metrics.jsonl.gz", "wt") as file:
        file.write("\n".join([*rows, *["{"] * 5]))
    notes = seen_in(str(tmp_path)).notes

    assert sum("is skipped: it is not JSON." in note for note in notes) == 3
    assert "2 more parts of the recording were skipped." in notes


def test_no_such_folder():
    """A path that is not there is an error that names it."""
    with pytest.raises(AdviseError, match="/no/where: there is no such file or folder"):
        seen_in("/no/where")


def test_interval_is_that_of_replay(recorded, tmp_path):
    """Rows and file give the same slots: the interval between samples is found in the same way."""
    rows = recorded("arm_roomy")
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"t": r.t, "took": r.took, "body": r.body}) + "\n" for r in rows))

    assert recording.interval(path, 1.0) == recording_interval(rows)
    assert seen_in(str(path)).slots == seen_of(rows, source=ABOUT).slots
