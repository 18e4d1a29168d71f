"""
Draw the dashboards: ``make pictures``.

Not a test, and not Grafana: the panels of the JSON at their places with the data of the lab's hour, drawn by a small
program of our own that formats with Grafana's code. Needs node, npm and Chromium.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import dash_history
import grafana_modules
from dashboards_help import ALL, PAGES
from generate import ROOT

PICTURES = ROOT / "dashboards" / "pictures"
NOW = dash_history.END - 1020.0
"""In the middle of both storms."""
SPAN = 3000.0
BROWSER = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    """Draw all, or those whose uids are given."""
    browser = next((found for name in BROWSER if (found := shutil.which(name))), None)
    reason = grafana_modules.reason() or ("" if browser else "Chromium is not installed")
    if reason or browser is None:
        sys.stderr.write(f"no pictures: {reason}\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    past = dash_history.kept(ROOT / ".cache" / "history")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(dash_history.serving(past))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for uid in sys.argv[1:] or PAGES:
            _draw(browser, url, uid, folder, PICTURES / f"{uid.removeprefix('kvpressure-')}.png")
    return 0


def _draw(browser: str, url: str, uid: str, folder: Path, picture: Path) -> None:
    asked = {
        "url": url,
        "now": NOW,
        "seconds": SPAN,
        "values": {**ALL, "window": "5m"},
        # Rows repeat per model; one is enough to see what they hold: the storm, or what vLLM itself does not see.
        "models": ["chat-8b" if uid == "kvpressure-streams" else "bookstore-14b"],
    }
    environment = {**os.environ, "GRAFANA_MODULES": str(grafana_modules.MODULES)}
    page = folder / f"{uid}.html"
    said = subprocess.run(
        ["node", grafana_modules.TOOL / "draw.cjs", ROOT / "dashboards" / f"{uid}.json", page, json.dumps(asked)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ).stdout
    size = json.loads(said.splitlines()[-1])
    flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-background-networking --no-first-run"
    subprocess.run(
        [
            browser,
            *flags.split(),
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={size['width']},{size['height']}",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )
    subprocess.run(["node", grafana_modules.TOOL / "shrink.cjs", picture], check=True, env=environment)
    kilobytes = picture.stat().st_size // 1000
    sys.stdout.write(f"{picture.relative_to(ROOT)}: {size['width']} by {size['height']}, {kilobytes} kB\n")


if __name__ == "__main__":
    sys.exit(main())
