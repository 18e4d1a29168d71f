"""Made-up advice for the tests of its reports: what they must be able to say, each case in its own way."""

import dataclasses

from kvpressure.advise.advice import (
    Advice,
    Band,
    Calibration,
    Change,
    Compared,
    Line,
    Need,
    Outcome,
    Point,
    Settings,
    Shift,
)
from kvpressure.advise.seen import Figure

HOSTILE = '</p><script src="//x">alert(1)</script>\u202e"\'&${main}$title\x1b[31m\x07\nnext'
LONG_QUERY = (
    'sum by (model_name, engine) (increase(kvpressure_preemptions_total{model_name="lab-8b", engine="0"}[5m])) '
    '/ sum by (model_name, engine) (increase(kvpressure_requests_finished_total{model_name="lab-8b", engine="0"}[5m]))'
)
NOTES = (
    "Lengths come from histograms, so prompts and answers are drawn independently of each other.",
    "A slow offload or swap link is not modelled: what it would cost is not said.",
)


def band(low, middle=None, high=None):
    """A band; with one number they all agree."""
    return Band(low, low if middle is None else middle, low if high is None else high)


def outcome(preemptions, ttft, *, paused=0.0, tokens=900.0, spread=0.3):
    """What the model says, with a band of some width."""

    def around(value):
        return Band(value * (1 - spread), value, value * (1 + spread))

    return Outcome(around(preemptions), around(paused), around(ttft / 6), around(ttft), around(tokens))


def change(key, title, how, price, says, result=None, ends=None, prompt=None):  # noqa: PLR0913, PLR0917  # as its document
    """A change, with an outcome or without."""
    return Change(key, title, how, price, result, ends, ends if prompt is None else prompt, says)


STORM = outcome(412.0, 3.4, paused=0.31, tokens=640.0)

CHANGES = (
    change(
        "max_tokens",
        "Cap max_tokens at 1,024, the p99 of answers",
        "in the gateway or the clients; no restart",
        "1 % of answers are cut off",
        "Preemptions fall from 412 to 268 per thousand; 1 in 100 answers ends early.",
        outcome(268.0, 2.9, paused=0.2),
        ends=False,
    ),
    change(
        "fp8",
        "FP8 KV cache",
        "--kv-cache-dtype fp8, by a restart",
        "precision; check the answers first",
        "Twice the cache ends preemption, and the first token comes after 0.6 s instead of 3.4 s.",
        outcome(0.0, 0.61, tokens=980.0),
        ends=True,
    ),
    change(
        "memory_25",
        "25 % more memory for the KV cache",
        "--gpu-memory-utilization, as far as the GPU has it",
        "less is left for peaks",
        "A quarter more is not quite enough: 21 per thousand are left.",
        outcome(21.0, 1.1, paused=0.02),
        ends=False,
    ),
    change(
        "memory_50",
        "50 % more memory for the KV cache",
        "--gpu-memory-utilization, as far as the GPU has it",
        "less is left for peaks",
        "Half as much again ends preemption.",
        outcome(0.4, 0.66),
        ends=True,
    ),
    change(
        "replica",
        "One more replica",
        "one more server behind the balancer",
        "a GPU",
        "Half the requests go elsewhere, which ends preemption.",
        outcome(0.0, 0.52),
        ends=True,
    ),
    change(
        "max_num_seqs",
        "--max-num-seqs 24 instead of 256",
        "--max-num-seqs, by a restart",
        "the wait moves from the middle of answers into the queue",
        "No answer is torn any more, and the first token comes after 4.9 s.",
        outcome(1.0, 4.9, tokens=870.0),
        ends=True,
        prompt=False,
    ),
    change(
        "guaranteed",
        "Guaranteed admission: prompt and max_tokens reserved",
        "vLLM has no flag for it; a gateway can do it",
        "few requests run at once",
        "Nothing is preempted, and most of the cache stays empty.",
        outcome(0.0, 22.0, tokens=310.0),
        ends=True,
    ),
)

_CURVE = (
    (8, 0.0, 14.0, False),
    (16, 0.0, 6.1, False),
    (24, 1.0, 1.9, True),
    (32, 3.4, 1.5, True),
    (48, 61.0, 1.9, False),
    (64, 190.0, 2.6, False),
    (128, 390.0, 3.3, False),
    (256, 412.0, 3.4, False),
)

SETTINGS = Settings(
    tuple(Point(seqs, outcome(preemptions, ttft), good) for seqs, preemptions, ttft, good in _CURVE),
    24,
    32,
    "Between 24 and 32, --max-num-seqs keeps both targets: below, the first token comes late; above, requests are "
    "preempted.",
)

NEED = Need(
    37240.0,
    2328,
    0.4,
    Figure(5.2e9, "bytes", "(37,240 - 26,600) tokens x 512 KiB per token", estimate=True),
    outcome(3.1, 0.8),
    "40 % more KV memory is the least that ends preemption.",
)

CALIBRATION = Calibration(
    (
        Compared(
            "preemptions per 1,000 requests",
            "preemptions",
            401.0,
            Band(350.0, 412.0, 470.0),
            "half to twice",
            holds=True,
            source=LONG_QUERY,
        ),
        Compared(
            "time to first token, p95",
            "seconds",
            3.1,
            Band(2.2, 3.4, 4.5),
            "half to twice",
            holds=True,
            source="histogram_quantile(0.95, sum by (le) (increase(vllm:time_to_first_token_seconds_bucket[24h])))",
        ),
        Compared(
            "requests paused",
            "",
            None,
            Band(0.2, 0.31, 0.4),
            "",
            holds=None,
            source="neither the tap nor the request log is on (--tap.listen, --log.path)",
        ),
        Compared(
            "time with the cache full",
            "",
            0.52,
            Band(0.4, 0.45, 0.5),
            "shown only: it depends on how fine the samples are",
            holds=None,
            source="increase(kvpressure_kv_pinned_seconds_total[5m])",
        ),
    ),
    holds=True,
    step="A step takes 18 ms + 0.21 ms x running requests (fitted to the gaps between tokens, 288 slots).",
    says="The model says 412 preemptions per thousand where 401 were observed: it may be believed.",
)

FULL = Advice(
    model="lab-8b",
    engine="0",
    source="Prometheus at http://prometheus.example:9090",
    begin=1_790_000_000.0,
    end=1_790_086_400.0,
    conclusion=(
        "The KV cache is too small for this traffic: 401 of 1,000 requests are preempted. Switch to an FP8 KV cache "
        "after an accuracy check; until then set --max-num-seqs to 32."
    ),
    have=(
        Line("KV capacity", Figure(26600.0, "tokens", "vllm:cache_config_info: num_gpu_blocks x block_size")),
        Line("memory per token", Figure(524288.0, "bytes per token", "2 x 32 layers x 32 heads x 128 x 2 bytes")),
        Line("blocks", Figure(1662.0, "blocks", "26,600 tokens / 16 tokens per block, rounded down", estimate=True)),
        Line("requests that fit at mean length", Figure(24.18, "requests", "26,600 / (850 + 250)", estimate=True)),
        Line("requests at once, at peak", Figure(61.0, "requests", "max(running + waiting) over the range")),
        Line("time that requests waited for blocks", Figure(0.374, "", LONG_QUERY)),
        Line(
            "--max-num-seqs",
            Figure(None, "requests", "vLLM does not tell it; give --max-num-seqs to the command"),
        ),
    ),
    limit="kv_memory",
    limit_says="Requests waited for KV blocks 37 % of the time, and preemption went on for hours (churn).",
    evidence=(
        Line("preemptions per 1,000 requests", Figure(401.0, "preemptions", LONG_QUERY)),
        Line("time in churn", Figure(21600.0, "seconds", 'count of slots with regime="churn" x 300 s')),
        Line("time in onset", Figure(300.0, "seconds", 'count of slots with regime="onset" x 300 s')),
        Line("requests paused", Figure(None, "", "neither the tap nor the request log is on")),
    ),
    shifts=(
        Shift(
            "answers",
            104.0,
            250.0,
            1_790_050_000.0,
            "increase(kvpressure_request_output_tokens_sum[5m]) / increase(kvpressure_request_output_tokens_count[5m])",
        ),
    ),
    calibration=CALIBRATION,
    need=NEED,
    changes=CHANGES,
    settings=SETTINGS,
    notes=NOTES,
    period="The busiest hour was simulated: 2026-09-21 22:00 to 23:00 UTC, 8 seeds.",
    targets="Preemption counts as ended under 5 per thousand requests; TTFT p95 may be 2 s.",
    target_per_thousand=5.0,
    target_ttft=2.0,
    seeds=8,
)

_ARITHMETIC = tuple(
    dataclasses.replace(each, outcome=None, ends=None, prompt=None, says="Twice the tokens fit.") for each in CHANGES
)

UNHELD = dataclasses.replace(
    FULL,
    source="the workload bookstore.yaml",
    begin=None,
    end=None,
    calibration=dataclasses.replace(
        CALIBRATION,
        rows=tuple(dataclasses.replace(row, observed=None, holds=None) for row in CALIBRATION.rows),
        holds=None,
        says="A workload was given, so there is nothing to compare with.",
    ),
    shifts=(),
)

NOT_RUN = dataclasses.replace(
    FULL,
    calibration=None,
    need=None,
    changes=_ARITHMETIC,
    settings=None,
    seeds=None,
    notes=("Nothing was simulated: no histogram of answer lengths was found.", *NOTES),
)

FAILS = dataclasses.replace(
    FULL,
    calibration=dataclasses.replace(
        CALIBRATION,
        rows=(
            dataclasses.replace(CALIBRATION.rows[0], modelled=Band(20.0, 31.0, 45.0), holds=False),
            *CALIBRATION.rows[1:],
        ),
        holds=False,
        says="The model says 31 preemptions per thousand where 401 were observed: it is not used.",
    ),
    need=None,
    changes=_ARITHMETIC,
    settings=None,
)

HOPELESS = dataclasses.replace(
    FULL,
    conclusion="No setting and no change that was tried ends preemption: add capacity.",
    need=None,
    changes=tuple(dataclasses.replace(each, outcome=STORM, ends=False, says="Preemption goes on.") for each in CHANGES),
    settings=Settings(
        tuple(dataclasses.replace(point, good=False) for point in SETTINGS.points),
        None,
        None,
        "No setting of --max-num-seqs keeps both targets; add capacity.",
    ),
)

HEALTHY = dataclasses.replace(
    FULL,
    conclusion="Nothing needs to be changed: no request was preempted in 24 hours.",
    limit="neither",
    limit_says="The cache was 41 % full at most, and nothing waited.",
    evidence=(Line("preemptions per 1,000 requests", Figure(0.0, "preemptions", LONG_QUERY)),),
    shifts=(),
    need=Need(
        26600.0,
        1662,
        0.0,
        Figure(0.0, "bytes", "nothing more is needed"),
        outcome(0.0, 0.4),
        "What there is is enough.",
    ),
    changes=(),
    settings=Settings((Point(256, outcome(0.0, 0.4), good=True),), 256, 256, "256 keeps both targets."),
)

UNKNOWN = Advice(
    model="",
    engine="",
    source="the recording empty/",
    begin=None,
    end=None,
    conclusion="Nothing can be advised: what limits this server is not known.",
    have=(
        Line("KV capacity", Figure(None, "tokens", "vLLM does not tell it; give --gpu-memory and --model-config")),
        Line("requests at once, at peak", Figure(float("nan"), "requests", "no sample has it")),
    ),
    limit="unknown",
    limit_says="Too little was seen.",
    evidence=(Line("share of time blocked", Figure(None, "", "no sample has it")),),
    shifts=(),
    calibration=None,
    need=None,
    changes=(),
    settings=None,
    notes=(),
    period="",
    targets="",
)

HOSTILE_NAMES = dataclasses.replace(
    FULL,
    model=HOSTILE,
    engine=HOSTILE,
    source=f"Prometheus at {HOSTILE}",
    have=(Line("KV capacity", Figure(1.0, HOSTILE, HOSTILE)),),
    conclusion=f"Look at {HOSTILE}.",
    changes=(dataclasses.replace(CHANGES[0], title=HOSTILE, how=HOSTILE, says=HOSTILE),),
    notes=(HOSTILE,),
)

ALL = {
    "full": FULL,
    "unheld": UNHELD,
    "not_run": NOT_RUN,
    "fails": FAILS,
    "hopeless": HOPELESS,
    "healthy": HEALTHY,
    "unknown": UNKNOWN,
    "hostile": HOSTILE_NAMES,
}
