"""
Write the files that are generated and committed: ``make generate``. Tests fail where one of them is stale.

Generated: the golden exposition; the parts of the README, and of that of the alerts, between `<!-- generated: NAME -->`
and `<!-- end -->`; the default bundle below alerts/, dashboards/ and deploy/; and the worked cases of docs/advise.md,
which are simulated and take a minute.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import advised
import alert_bench
import helm_help

from kvpressure import config, recording, replay, tables
from kvpressure.bundle import alerts, example, write
from kvpressure.bundle import config as bundle
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose import catalogue, families

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
ALERTS = ROOT / "alerts"
ALERTS_README = ALERTS / "README.md"
ADVICE = ROOT / "docs" / "advise.md"
GOLDEN = ROOT / "tests" / "golden" / "arm_roomy.prom"
RECORDING = ROOT / "tests" / "fixtures" / "recordings" / "arm_roomy"


def golden() -> str:
    """The exposition at the end of a recording, without the line that names this Python."""
    path = recording.find(str(RECORDING))
    rows = recording.rows(path, complain=print)
    *_, last = replay.steps(rows, config.Config(), recording.interval(path, 1.0), 3600.0)
    return without_versions(last)


def without_versions(snapshot: Snapshot) -> str:
    """The exposition of a snapshot without build_info, which differs from machine to machine."""
    lines = families.exposition(snapshot).decode().splitlines(keepends=True)
    return "".join(line for line in lines if "kvpressure_build_info" not in line)


def readme(text: str) -> str:
    """The README with its generated parts made anew."""
    return _filled(
        text,
        {
            "signals": tables.markdown(catalogue.MARKDOWN_HEADER, catalogue.markdown_rows()),
            "settings": tables.markdown(("flag and key", "default", "meaning"), _settings()),
        },
    )


def alerts_readme(text: str) -> str:
    """That of the alerts, but for the bench's table, which takes a minute."""
    numbers = [(f"`{name}`", f"`{example.value(what)}`", what.metadata["help"]) for name, what in bundle.settings()]
    listed = [
        (
            f"[{alert.name}](runbooks/{alert.name}.md)",
            alert.severity,
            alert.hold or "at once",
            alert.keep,
            alert.summary,
        )
        for alert in alerts.alerts(bundle.BundleConfig())
    ]
    return _filled(
        text,
        {
            "alerts": tables.markdown(("alert", "severity", "holds for", "fires on for", "says"), listed),
            "numbers": tables.markdown(("key", "default", "what it protects, and when to change it"), numbers),
        },
    )


def alerts_bench(text: str, results: Mapping[str, alert_bench.Result]) -> str:
    """The same page with the bench's table made anew."""
    return _filled(text, {"bench": alert_bench.table(results)})


def _filled(text: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        text = tables.filled(text, name, part)
    return text


def _settings() -> list[tuple[str, ...]]:
    return [(f"`--{name}`", _default(what), what.metadata["help"]) for name, what in config.settings()]


def _default(what: dataclasses.Field[object]) -> str:
    if what.metadata["kind"] == "duration":
        return f"`{what.default:g}s`"
    if isinstance(what.default, tuple):
        return ", ".join(f"`{item}`" for item in what.default)
    if isinstance(what.default, bool):
        return "on" if what.default else "off"
    return f"`{what.default}`" if what.default != "" else ""


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(golden(), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    write.write(ROOT, write.bundle(bundle.BundleConfig()))
    page = alerts_readme(ALERTS_README.read_text(encoding="utf-8"))
    page = alerts_bench(page, alert_bench.run())
    ALERTS_README.write_text(page, encoding="utf-8")
    helm_help.SCHEMA.write_text(helm_help.schema(helm_help.SCHEMA.read_text(encoding="utf-8")), encoding="utf-8")
    helm = helm_help.README.read_text(encoding="utf-8")
    helm_help.README.write_text(_filled(helm, {"values": helm_help.values_table()}), encoding="utf-8")
    advice = ADVICE.read_text(encoding="utf-8")
    ADVICE.write_text(_filled(advice, {"advise-cases": advised.markdown()}), encoding="utf-8")
