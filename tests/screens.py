"""``python tests/screens.py [NAME ...]``: pictures of the page in every state into .cache/screens, and the README's."""

import sys
from pathlib import Path

from browser import WIDTHS, Stage, chromium
from stages import stages

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "screens"
README = ROOT / "docs" / "page.png"
SCHEMES = ("light", "dark")
_LIVE = "document.getElementById('live').textContent.startsWith('Live')"


def main(names):
    """Draw the states of these names, or all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    README.parent.mkdir(exist_ok=True)
    with chromium() as browser:
        for name, snapshots in stages().items():
            if names and name not in names:
                continue
            with Stage(snapshots).served() as stage:
                for width in WIDTHS:
                    for scheme in SCHEMES:
                        _draw(browser, stage.url, width, scheme, FOLDER / f"{name}-{width}-{scheme}.png")
                if name == "storm":
                    _draw(browser, stage.url, "readme", "light", README)


def _draw(browser, url, width, scheme, path):
    across, down = WIDTHS.get(width, (1100, 720))
    with browser.new_context(viewport={"width": across, "height": down}, color_scheme=scheme) as context:
        tab = context.new_page()
        tab.goto(url)
        while not tab.evaluate(_LIVE):
            tab.wait_for_timeout(100)
        tab.screenshot(path=path, full_page=width != "readme")


if __name__ == "__main__":
    main(sys.argv[1:])
