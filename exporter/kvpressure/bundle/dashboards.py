"""The dashboards, each a file."""

from kvpressure.bundle import dash_capacity, dash_exporter, dash_oncall, dash_streams, grafana
from kvpressure.bundle.config import BundleConfig


def files(config: BundleConfig) -> dict[str, str]:
    """The JSON of every dashboard, by its file's name."""
    pages = (module.page(config) for module in (dash_oncall, dash_streams, dash_capacity, dash_exporter))
    return {f"{page.uid}.json": grafana.text(page) for page in pages}
