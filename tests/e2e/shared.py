"""What the commands share: their first argument, and the files in which they keep what was seen."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The arguments of a command that needs a vLLM; `doc` is what it does."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("home", type=Path, help="what tests/e2e/setup.sh made")
    return made


def keep(path: Path, what: Mapping[str, Any]) -> None:
    """Write a file of JSON, in the place of an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
