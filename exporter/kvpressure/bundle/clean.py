"""Drops from a dashboard's JSON what grafanalib writes and Grafana no longer knows."""

from typing import Any

_GONE = {
    "dashboard": {"__inputs", "hideControls", "rows", "sharedCrosshair", "style", "gnetId", "version"},
    "panel": {"editable", "error", "height", "minSpan", "span", "hideTimeOverride", "maxPerRow", "repeatDirection"},
    "target": {"query", "target", "intervalFactor", "metric", "step", "interval", "hide"},
}


def cleaned(whole: dict[str, Any]) -> dict[str, Any]:
    """A dashboard as Grafana's published schema has it."""
    kept = {key: value for key, value in whole.items() if key not in _GONE["dashboard"]}
    kept["panels"] = [_clean_panel(panel) for panel in whole["panels"]]
    kept["timepicker"] = {}
    return _without_nulls(kept)  # type: ignore[no-any-return]


def _clean_panel(panel: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in panel.items() if key not in _GONE["panel"]}
    if panel.get("panels"):
        kept["panels"] = [_clean_panel(one) for one in panel["panels"]]
    if panel.get("targets"):
        kept["targets"] = [
            {key: value for key, value in target.items() if key not in _GONE["target"]}
            | {"editorMode": "code", "range": not target["instant"]}
            for target in panel["targets"]
        ]
    return kept


def _without_nulls(value: Any) -> Any:  # noqa: ANN401  # any JSON
    """The same without nulls, but for the first step of thresholds, where it means "from below"."""
    if isinstance(value, dict):
        return {
            key: _without_nulls(one)
            for key, one in value.items()
            if one is not None or (key == "value" and "color" in value)
        }
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
