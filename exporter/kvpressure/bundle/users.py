"""Alerts on what users see: pauses, gaps, the length of answers."""

from kvpressure import signals, signals_streams
from kvpressure.bundle import alert, records
from kvpressure.bundle.alert import Alert
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.promql import Picker, duration, hold, indent, number, tap_else_log


def pausing(config: BundleConfig) -> Alert:
    """Users see their answers stand still, whatever the reason, and no onset explains it."""
    own, pick = config.requests_pausing, Picker(config.select.exporter)
    share = tap_else_log(pick, signals_streams.PAUSED_RATIO, own.window)
    minute = pick(signals_streams.PAUSED_RATIO, 'window="1m"', over=own.still)
    still = f"max without (window) (max_over_time({minute}))"
    seen = (
        f"increase({pick(signals_streams.REQUESTS_STREAMED, over=300.0)}) + {pick(signals_streams.REQUESTS_STREAMING)}"
    )
    onset = pick.one(signals.REGIME, "regime", "onset")
    return Alert(
        alert.REQUESTS_PAUSING,
        "critical",
        f"(\n{indent(share)}\n) > {number(own.share)}\nand\n{still} > {number(own.share)}\nand\n"
        f"{seen} >= {number(own.requests)}\nunless ignoring (source, engine)\n{onset} == 1",
        hold(own.hold),
        hold(own.keep),
        "Users see their answers stand still.",
        f"{{{{ $value | humanizePercentage }}}} of the requests to model {{{{ $labels.model_name }}}} ({alert.WHERE}) "
        f"were paused for longer than the pause threshold within the last {own.window} (page from "
        f"{number(100 * own.share)} %), as the {{{{ $labels.source }}}} sees it, and it goes on. The verdict tells "
        "whether the KV cache is the reason.",
    )


def gap_high(config: BundleConfig) -> Alert:
    """Tokens come, and too slowly, or with long holes."""
    own, pick = config.inter_token_gap, Picker(config.select.exporter)
    engine = pick.one(signals.GAP_P99, "window", own.window, 'source="engine"')
    streams = pick.one(signals.GAP_P99, "window", own.window, 'source=~"tap|log"')
    p99 = (
        f"{tap_else_log(pick, signals.GAP_P99, own.window)}\nor\n{engine}\nunless ignoring (source, engine)\n{streams}"
    )
    longest = tap_else_log(pick, signals_streams.GAP_MAX, own.window)
    return Alert(
        alert.INTER_TOKEN_GAP_HIGH,
        "warning",
        f"(\n{indent(p99)}\n) > {number(own.p99)}\nor\n(\n{indent(longest)}\n) > {number(own.longest)}",
        hold(own.hold),
        hold(own.keep),
        "The gaps between tokens are long.",
        f"Model {{{{ $labels.model_name }}}} ({alert.WHERE}) leaves gaps of {{{{ $value | humanizeDuration }}}} "
        f"between tokens, as the {{{{ $labels.source }}}} sees it: as the 99th percentile (ticket over "
        f"{number(own.p99)} s) or again and again as the longest one (over {number(own.longest)} s).",
    )


def output_shift(config: BundleConfig) -> Alert:
    """Answers are longer or shorter than they used to be."""
    own = config.output_length_shift
    return Alert(
        alert.OUTPUT_LENGTH_SHIFT,
        "warning",
        f"abs(\n  {records.output_mean(config)}\n  /\n  {records.OUTPUT_MEAN_BEFORE}\n  - 1\n) >= "
        f"{number(own.change)}\nand\n{records.output_count(config)} >= {number(own.requests)}",
        hold(own.hold),
        hold(own.keep),
        "Answers have another length than they used to have.",
        f"The mean length of the answers of model {{{{ $labels.model_name }}}} in the last {duration(own.window)} "
        "differs by {{ $value | humanizePercentage }} from what it was yesterday at this time, or in the hours before. "
        "Longer answers need more KV cache each: what fitted yesterday may not fit today.",
    )


def stall_elsewhere(config: BundleConfig) -> Alert:
    """Streams stand still and the cache is not the reason."""
    own, pick = config.stall_elsewhere, Picker(config.select.exporter)
    return Alert(
        alert.STALL_ELSEWHERE,
        "warning",
        f"{pick.one(signals.VERDICT, 'verdict', 'stall_elsewhere')} == 1",
        hold(own.hold),
        hold(own.keep),
        "Answers stand still, and not for want of KV cache: look at host, network, compute.",
        f"Streams of engine {{{{ $labels.engine }}}} of model {{{{ $labels.model_name }}}} ({alert.WHERE}) stand still "
        f"again and again, for more than {duration(own.hold)}, without a preemption and with room in the KV cache.",
    )
