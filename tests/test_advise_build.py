"""What to do first: the conclusion holds both targets, and agrees with what stands below it."""

import re
from dataclasses import replace

import pytest

from kvpressure.advise import build, changes, seqs, workload
from kvpressure.advise.advice import Advice, Band, Change, Need, Outcome, Shift
from kvpressure.advise.build import Options, advise, advise_on, config_of
from kvpressure.advise.changes import Targets
from kvpressure.advise.conclusion import conclusion
from kvpressure.advise.fit import USUAL
from kvpressure.advise.have import have, have_of
from kvpressure.advise.seen import AdviseError, Counted, Figure, Seen, Server, Slot

LATE = """\
seconds: 120s
rate: 3
prompt: {mean: 50}
answer: {mean: 200}
server: {blocks: 6000, block_size: 16, max_num_seqs: 4}
"""
"""Four at once where the cache seats hundreds."""
CUT = """\
seconds: 60s
rate: 1
max_tokens: 300
prompt: {mean: 50}
answer: {p50: 400, p95: 2000}
server: {blocks: 600, block_size: 16}
"""
"""Most answers end at max_tokens."""


def band(value):
    """A figure without spread."""
    return Band(value, value, value)


def change(key, per_thousand, ttft, *, ends, prompt):
    """A change with these figures."""
    outcome = Outcome(band(per_thousand), band(0.0), band(ttft / 2), band(ttft), band(100.0))
    return Change(key, key.capitalize(), f"--{key}", "", outcome, ends, prompt, f"{key} says.")


NOT_KNOWN = Figure(None, "bytes", "not told")
KNOWN = Advice(
    "m",
    "0",
    "a test",
    0.0,
    600.0,
    "",
    (),
    "neither",
    "It idles.",
    (),
    (),
    None,
    None,
    (),
    None,
    (),
    "",
    "",
    5.0,
    2.0,
    1,
)
NEED = Need(3200.0, 200, 1.0, NOT_KNOWN, change("need", 0.0, 0.1, ends=True, prompt=True).outcome, "Twice the cache.")
NOW = change("now", 400.0, 9.0, ends=False, prompt=False)
CALM = change("now", 0.0, 0.1, ends=True, prompt=True)
QUEUED = change("now", 0.0, 112.9, ends=True, prompt=False)


@pytest.fixture
def described(tmp_path):
    """Reads a workload."""

    def read(text):
        path = tmp_path / "w.yml"
        path.write_text(text, encoding="utf-8")
        return workload.read(str(path))

    return read


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """The advice on a batch that is too small."""
    path = tmp_path_factory.mktemp("late") / "w.yml"
    path.write_text(LATE, encoding="utf-8")
    return advise_on(workload.read(str(path)), Options(seeds=2))


def test_a_broken_target_is_something_to_change(late):
    """Nothing is preempted and first tokens come a minute late: a larger batch is advised, and no memory."""
    assert "Nothing needs to change" not in late.conclusion
    assert "Nothing is preempted, but first tokens come late" in late.conclusion
    assert "--max-num-seqs 16" in late.conclusion
    assert "memory" not in late.conclusion.lower()


def test_a_queue_that_grows_for_ever_is_told_of(late, described):
    """Of three requests a second a batch of four serves one, and two wait; of one that serves all nothing is said."""
    (share,) = re.findall(
        r"of every 100 requests (\d+) were added to the queue, which grows for as long", late.conclusion
    )
    served = advise_on(described(LATE.replace("seqs: 4", "seqs: 64")), Options(seeds=1))
    assert 55 < int(share) < 75
    assert "added to the queue" not in served.conclusion


@pytest.mark.parametrize("seeds", [1, 5])
@pytest.mark.parametrize("text", [LATE, CUT], ids=["late", "cut"])
def test_a_progress_bar_is_full_when_the_simulations_are_over(text, seeds, described):
    """It counts runs, of which each seed takes about a hundred, however many are made at once."""
    steps = []
    advise_on(described(text), Options(seeds=seeds, done=lambda: steps.append(1)))
    assert 0.5 < len(steps) / (build.RUNS * seeds) < 1.4


def test_a_larger_batch_is_tried_until_first_tokens_are_in_time(late):
    """Twice and four times as many at once, before all that costs memory or money."""
    keys = [change.key for change in late.changes]
    assert keys[:3] == ["now", "more_seqs_2", "more_seqs_4"]
    assert [change.prompt for change in late.changes[:3]] == [False, False, True]
    assert late.changes[2].says.startswith("Preemption stays below its target")


def test_the_band_goes_on_above_the_setting_there_is(late):
    """Where the batch is too small the curve shows how large it must be; fewer at once are not advised."""
    assert late.settings.low is not None
    assert 8 < late.settings.low <= late.settings.high <= 16
    assert "max_num_seqs" not in [change.key for change in late.changes]


def test_prompts_that_vllm_refuses_are_told_of(described):
    """Some are a note; most of them are no workload for this server."""
    some = LATE.replace("prompt: {mean: 50}", "prompt: {p50: 50, p95: 300}").replace(
        "seqs: 4", "seqs: 64, max_model_len: 300"
    )
    found = advise_on(described(some), Options(seeds=1))
    assert [note for note in found.notes if "have no room for an answer within the 300 tokens" in note]

    most = LATE.replace("prompt: {mean: 50}", "prompt: {mean: 9000}").replace("seqs: 4", "seqs: 4, max_model_len: 4096")
    with pytest.raises(AdviseError, match="so vLLM refuses most of this workload: give shorter ones"):
        advise_on(described(most), Options(seeds=1))


def test_a_trace_of_one_moment_is_looked_at_for_a_minute(described, tmp_path):
    """Fifty requests that come at once, and do not fit, are preempted after the last of them has come."""
    (tmp_path / "t.csv").write_text("arrival,prompt,answer\n" + "0,100,400\n" * 50, encoding="utf-8")
    found = advise_on(
        described("trace: t.csv\nserver: {capacity_tokens: 8000, max_num_seqs: 64, max_model_len: 4096}\n"),
        Options(seeds=1),
    )
    assert "Nothing needs to change" not in found.conclusion
    assert found.changes[0].outcome.per_thousand.middle > 100.0


def test_a_flag_beside_a_replica_may_save_a_gpu(described):
    """Where two replicas have full batches, and one cannot compute it all, two with a larger batch are tried first."""
    busy = "seconds: 120s\nrate: 6\nprompt: {mean: 800}\nanswer: {mean: 400}\n"
    found = advise_on(described(busy + "server: {blocks: 13414, block_size: 16, max_num_seqs: 48}\n"), Options(seeds=2))
    keys = [change.key for change in found.changes]

    assert "replica_more_seqs_2" in keys
    assert "replica_2" not in keys
    both = found.changes[keys.index("replica_more_seqs_2")]
    assert (both.ends, both.prompt) == (True, True)
    assert not found.changes[keys.index("replica")].prompt
    assert "96 requests at once instead of 48, and one more replica: 2 instead of 1" in found.conclusion


def test_what_is_asked_for_stands_beside_what_is_given(described):
    """Requests and answer tokens per second of the workload: more than a server computes is no matter of memory."""
    read = described(LATE)
    lines = {line.name: line.figure.value for line in have_of(read.server, read.jobs(0), read.seconds)}

    assert lines["Requests per second"] == pytest.approx(3.0, rel=0.2)
    assert lines["Answer tokens asked for per second"] == pytest.approx(200.0 * lines["Requests per second"])


def test_the_band_has_no_end_where_more_never_ran(described):
    """Where the cache and the batch have room, no setting above what ran at once is ruled out."""
    found = advise_on(described(LATE.replace("seqs: 4", "seqs: 256")), Options(seeds=1))
    assert found.settings.says.startswith(f"From {found.settings.low} on neither target is broken.")
    assert f"More than {found.settings.high} never ran at once" in found.settings.says
    assert found.settings.high < 256


def test_a_step_time_that_was_not_given_is_said_first(described):
    """All waiting times rest on it, so it stands in the headline where it was assumed."""
    stated = LATE.replace("seqs: 4", "seqs: 4, step_time: {base: 20ms, decode: 0.2ms, prefill: 0.1ms}")
    assumed, given = (advise_on(described(text), Options(seeds=1)) for text in (LATE, stated))

    assert "8B model on a 24 GB card was assumed" in assumed.conclusion
    assert assumed.calibration.step.startswith("a step takes 18.00 ms + 0.200 ms x requests that decode")
    assert "assumed" not in given.conclusion
    assert given.calibration.step.startswith("a step takes 20.00 ms")


def test_a_batch_that_cannot_be_larger_is_not_made_so(described):
    """vLLM does not start with more requests at once than tokens in a step."""
    found = advise_on(described(LATE.replace("seqs: 4", "seqs: 4, max_num_batched_tokens: 7")), Options(seeds=1))
    assert not [change.key for change in found.changes if change.key.startswith("more_seqs")]
    assert found.settings.low is None
    assert "none preempts, and first tokens take over 2 s at each" in found.settings.says
    assert "goes on preempting" not in found.settings.says
    assert "Add capacity" not in found.settings.says


@pytest.mark.parametrize(("high", "says"), [(None, "it goes on preempting."), (12, "and at 12 or less, where it does")])
def test_no_band_says_what_preempts(high, says):
    """Only a setting that preempts is said to."""
    found = seqs._no_band(Targets(), high, 40)
    assert says in found
    assert found.endswith("Add capacity.")


def test_a_healthy_server_keeps_both_targets():
    """Nothing needs to change only where both are kept; a limit that was seen all the same is not contradicted."""
    said = conclusion(KNOWN, NEED, [CALM], enough=True)
    assert said == (
        "It idles. Nothing needs to change: the model gives 0.0 preemptions per thousand requests and a TTFT p95 of "
        "100 ms as things are."
    )
    limited = replace(KNOWN, limit="kv_memory", limit_says="The KV cache is too small.")
    said = conclusion(limited, NEED, [CALM], enough=True)
    assert "Nothing needs to change" not in said
    assert "Both targets are kept all the same" in said


def test_what_is_advised_keeps_both_targets():
    """The change that is named is one whose own sentence says that first tokens are in time."""
    slow = change("fp8", 0.0, 1.9, ends=True, prompt=False)
    good = change("replica", 0.0, 1.8, ends=True, prompt=True)
    for now in (NOW, QUEUED):
        assert "--replica" in conclusion(KNOWN, NEED, [now, slow, good], enough=True)
        assert "--fp8" not in conclusion(KNOWN, NEED, [now, slow, good], enough=True)


def test_where_nothing_helps():
    """Memory is called the answer only where it keeps both targets."""
    slow = change("fp8", 0.0, 9.0, ends=True, prompt=False)
    assert "it takes that much memory" in conclusion(KNOWN, NEED, [NOW, slow], enough=True)
    assert "send this server less traffic" in conclusion(KNOWN, NEED, [NOW, slow], enough=False)
    assert "asked for more than it can compute" in conclusion(KNOWN, None, [NOW, NOW], enough=False)
    assert "None of the changes that were tried alone brings them in time" in conclusion(
        KNOWN, NEED, [QUEUED, slow], enough=False
    )


def test_longer_answers_come_first():
    """Before any change a reader learns since when answers are longer; shorter ones are no reason for one."""
    longer = replace(KNOWN, shifts=(Shift("answers", 100.0, 240.0, 0.0),))
    shorter = replace(KNOWN, shifts=(Shift("answers", 240.0, 100.0, 0.0),))
    assert "became 2.4 times longer since 1970-01-01 00:00 UTC" in conclusion(longer, NEED, [NOW, CALM], enough=True)
    assert "became" not in conclusion(shorter, NEED, [NOW, CALM], enough=True)


def test_answers_end_at_max_tokens(described):
    """What a client's max_tokens cuts off is not counted as length, and the cap that is there is not advised."""
    read = described(CUT)
    lines = {line.name: line.figure.value for line in have_of(read.server, read.jobs(0), read.seconds)}
    assert lines["Mean answer"] <= 300.0
    assert lines["95th percentile of answers"] == 300.0
    assert build._present(read.server, read, Options()).p99 is None
    whole = described(CUT.replace("max_tokens: 300", "max_tokens: 30000").replace("rate: 1", "rate: 10"))
    p99 = build._present(whole.server, whole, Options()).p99
    assert 300 < p99 < max(job.answer for job in whole.jobs(0))
    assert "max_tokens" not in [each.key for each in changes.listed(build._present(read.server, read, Options()))]


def test_guaranteed_admission_says_what_it_rests_on(described):
    """Without max_tokens it reserves what no gateway knows, and a note says so; with it there is none."""
    without = advise_on(described(LATE.replace("seqs: 4", "seqs: 64")), Options(seeds=1))
    assert build._UNLIMITED in without.notes
    given = advise_on(
        described(LATE.replace("seqs: 4", "seqs: 64").replace("rate", "max_tokens: 400\nrate")), Options(seeds=1)
    )
    assert build._UNLIMITED not in given.notes


@pytest.mark.parametrize("server", ["blocks: 2, block_size: 1", "blocks: 600, block_size: 16, max_model_len: 2"])
def test_a_server_that_takes_no_request_is_one_sentence(described, server):
    """One token has no room for a prompt and its answer; two have."""
    read = described(f"seconds: 9s\nrate: 1\nprompt: {{mean: 5}}\nanswer: {{mean: 5}}\nserver: {{{server}}}")
    if "model_len" in server:
        assert config_of(read.server, USUAL).max_request_tokens == 2
    read = replace(
        read, server=replace(read.server, max_model_len=Figure(1.0, "tokens", "--max-model-len 1, as given"))
    )
    with pytest.raises(AdviseError, match="1 token at most, which is too few for a prompt"):
        config_of(read.server, USUAL)


def test_lengths_cite_sum_and_count_of_the_busiest_stretch(described):
    """Each mean can be asked for again: its sum, its count and the time that they were taken over."""
    edges = (200.0, 500.0, float("inf"))
    counted = Counted(edges, (5.0, 5.0, 0.0), 2000.0)
    slots = tuple(Slot(1_800_000_000.0 + 60 * n, 60.0, prompts=counted, answers=counted) for n in range(1, 11))
    sources = {"prompts": "p_bucket{}", "prompts_sum": "p_sum{}", "answers": "the lengths of answers"}
    whole = Seen("m", "0", "a test", described(LATE).server, slots, sources)
    lines = {line.name: line.figure.source for line in have(whole, slots[2:8])}
    when = "in the busiest stretch, 2027-01-15 08:02 UTC to 2027-01-15 08:08 UTC"
    assert lines["Mean prompt"] == f'p_sum{{}} / ignoring(le) p_bucket{{le="+Inf"}}; {when}'
    assert lines["Mean answer"] == f"the lengths of answers; {when}"
    assert lines["95th percentile of prompts"] == f"interpolated in the buckets of: p_bucket{{}}; {when}"


EDGES = (200.0, 500.0, 1000.0, float("inf"))
SERVER = Server(
    Figure(20_000.0, "tokens", "told"), Figure(16.0, "tokens", "told"), NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
)


def slots(number, begin, **known):
    """So many quarters of a minute."""
    return tuple(Slot(1_800_000_000.0 + 15.0 * (begin + each + 1), 15.0, **known) for each in range(number))


def counted(*counts, mean):
    """A histogram of lengths."""
    return Counted(EDGES, tuple(map(float, counts)), mean * sum(counts))


def test_what_is_past_is_not_advised_on():
    """Ten minutes of storm and an hour of shorter answers since: the limit is that of what was simulated."""
    known = {"finished": 10.0, "running": 5.0, "observed": 15.0, "prompts": counted(10, 0, 0, 0, mean=100)}
    storm = {"tokens": 6000.0, "preemptions": 5.0, "waiting": 20.0, "usage": 0.98, "blocked": 10.0, "regime": "churn"}
    calm = {"tokens": 1500.0, "preemptions": 0.0, "waiting": 0.0, "usage": 0.06, "blocked": 0.0, "regime": "calm"}
    seen = Seen(
        "m",
        "0",
        "a test",
        SERVER,
        slots(40, 0, **known, **storm, answers=counted(0, 2, 8, 0, mean=600))
        + slots(240, 40, **known, **calm, answers=counted(8, 2, 0, 0, mean=150)),
    )
    found = advise(seen, Options(seeds=1))
    assert found.limit == "neither"
    assert "too small" not in found.conclusion
    assert "it was the KV cache" in found.conclusion


def test_a_model_that_answers_nothing_is_one_sentence():
    """An embedding model has no answer tokens: its step time is not known, and that is said."""
    nothing = counted(10, 0, 0, 0, mean=0)
    known = {"finished": 10.0, "running": 1.0, "tokens": 0.0, "preemptions": 0.0, "waiting": 0.0}
    seen = Seen(
        "m", "0", "a test", SERVER, slots(60, 0, **known, prompts=counted(5, 5, 0, 0, mean=200), answers=nothing)
    )
    found = advise(seen, Options(seeds=1))
    assert "Changes were not simulated: the time of a step cannot be told" in found.conclusion


def test_an_observed_server_that_takes_no_request_is_one_sentence():
    """What was seen is still shown."""
    known = {"finished": 10.0, "running": 5.0, "tokens": 1500.0, "preemptions": 0.0, "waiting": 0.0}
    lengths = {"prompts": counted(10, 0, 0, 0, mean=100), "answers": counted(10, 0, 0, 0, mean=100)}
    server = replace(SERVER, max_model_len=Figure(1.0, "tokens", "--max-model-len 1, as given"))
    found = advise(Seen("m", "0", "a test", server, slots(60, 0, **known, **lengths)), Options(seeds=1))
    assert "Changes were not simulated: a request can have 1 token at most" in found.conclusion
    assert found.have
