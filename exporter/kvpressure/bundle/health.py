"""Alerts on what the others depend on: vLLM, the exporter, its signals, its log."""

from kvpressure import signals, signals_exporter
from kvpressure.bundle import alert
from kvpressure.bundle.alert import Alert
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.promql import Picker, duration, hold, indent, number


def vllm_down(config: BundleConfig) -> Alert:
    """vLLM does not answer the exporter."""
    own, pick = config.vllm_down, Picker(config.select.exporter)
    now, served, began = (pick(signals_exporter.UP, over=over) for over in (None, own.served, own.start))
    return Alert(
        alert.VLLM_DOWN,
        "critical",
        down(now, served, began, pick(signals_exporter.UP, offset=own.start)),
        hold(own.hold),
        "",
        "vLLM does not answer.",
        f"The exporter {alert.WHERE} gets no metrics from its vLLM, which answered within the last "
        f"{duration(own.served)} or has had {duration(own.start)} to start. Until it is back nothing is known of its "
        "KV cache, and most likely nobody is served.",
    )


def down(now: str, served: str, start: str, at_start: str) -> str:
    """
    An expression: down, after it has answered or was there for as long as a start takes.

    Args:
        now: selector of 0 or 1.
        served: over the time within which it must have answered.
        start: over the time that a start takes.
        at_start: at the beginning of that time.
    """
    started = f"max_over_time({start}) == 0\nand\n{at_start} == 0"
    return f"{now} == 0\nand\n(\n  max_over_time({served}) == 1\nor\n{indent(started)}\n)"


def exporter_down(config: BundleConfig) -> Alert:
    """Prometheus gets no answer from an exporter, or has lost the last one of a job."""
    own, pick = config.exporter_down, Picker(config.select.exporter_job)
    labels = ", ".join(config.select.namespace_labels)
    expression = f"{pick.up()} == 0"
    if own.gone:
        seen = f"0 * max by ({labels}) (count_over_time({pick.up(over=own.gone)}))"
        expression += f"\nor\n{seen}\nunless on ({labels})\n{pick.up()}"
    return Alert(
        alert.EXPORTER_DOWN,
        "warning",
        expression,
        hold(own.hold),
        "",
        "kvpressure is not there: nobody watches the KV cache.",
        "Prometheus gets no metrics from kvpressure (job {{ $labels.job }}, instance "
        "{{ or $labels.instance `all of them` }}). vLLM may serve well, but no alert on its KV cache can fire.",
    )


def signal_missing(config: BundleConfig) -> Alert:
    """A headline signal is no longer there."""
    own, pick = config.signal_missing, Picker(config.select.exporter)
    headline = "|".join(signal.name for signal in signals.CATALOGUE if signal.headline)
    wanted = f'signal=~"{headline}"'
    now = pick(signals_exporter.SIGNAL_AVAILABLE, wanted)
    past = f"max_over_time({pick(signals_exporter.SIGNAL_AVAILABLE, wanted, over=own.within)})"
    labels = ", ".join((*config.select.namespace_labels, "signal"))
    same = f"{now} == 0\nand\n{past} == 1"
    # An upgrade brings pods with other names: what one had lost then, the others had before.
    all_of_them = f"{now} == 0\nand on ({labels})\nmax by ({labels}) ({past}) == 1\nunless on ({labels})\n{now} == 1"
    return Alert(
        alert.SIGNAL_MISSING,
        "warning",
        f"{same}\nor\n{all_of_them}",
        hold(own.hold),
        "",
        "A signal that the other alerts read is no longer there.",
        f"kvpressure on {alert.WHERE} can no longer derive {{{{ $labels.signal }}}}, which was there within the "
        f"last {duration(own.within)}. Alerts that read it cannot fire. `kvpressure check` says what is missing.",
    )


def log_stalled(config: BundleConfig) -> Alert:
    """The request log is configured, and no longer read as it is written."""
    own, pick = config.log_stalled, Picker(config.select.exporter)
    lines = pick(signals_exporter.LOG_LINES, over=own.window)
    tokens = f"sum without (model_name, engine) (increase({pick(signals.GENERATION_TOKENS, over=own.window)}))"
    silent = f"increase({lines}) == 0\nand\n{tokens} > 0"
    dropped = f"increase({pick(signals_exporter.LOG_DROPPED_LINES, over=own.window)}) > 0"
    # The lag is that of the latest line: without lines it says nothing of the present.
    late = (
        f"min_over_time({pick(signals_exporter.LOG_LAG, over=own.window)}) > {number(own.lag)}\n"
        f"and\nincrease({lines}) > 0"
    )
    return Alert(
        alert.LOG_STALLED,
        "warning",
        "\nor\n".join(f"(\n{indent(part)}\n)" for part in (silent, dropped, late)),
        hold(own.hold),
        "",
        "vLLM's request log is not read as it is written.",
        f"kvpressure on {alert.WHERE} reads nothing from vLLM's log while vLLM generates tokens, or skips "
        f"lines, or is more than {number(own.lag)} s late. Pauses and gaps with source log cannot be trusted.",
    )
