"""The page at ``/``: what this is, and where its answers are."""

import base64
import hashlib
from collections.abc import Mapping
from html import escape

from kvpressure import __version__

_STYLE = ":root{color-scheme:light dark}body{font:1rem/1.5 sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem}"
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Lets a page load nothing and run nothing, but use the one style above."""


def page(links: Mapping[str, str]) -> str:
    """
    The HTML page.

    Args:
        links: what each path offers, by path.
    """
    items = "\n".join(
        f'<li><a href="{escape(path)}">{escape(path)}</a>: {escape(text)}</li>' for path, text in links.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvpressure</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>kvpressure</h1>
<p>Shows when vLLM's KV cache is too small for its traffic, and how badly users feel it.</p>
<p>Version {escape(__version__)}</p>
<ul>
{items}
</ul>
</main>
</body>
</html>
"""
