"""Grafana's packages from npm, fetched once, below the cache."""

import shutil
import subprocess
from pathlib import Path

TOOL = Path(__file__).parent / "grafana"
MODULES = Path(__file__).parents[1] / ".cache" / "grafana"


def reason() -> str:
    """Why they cannot be had; empty where they are there."""
    wanted = (TOOL / "package.json").read_text(encoding="utf-8")
    marker = MODULES / "fetched.json"
    if shutil.which("node") is None:
        return "node is not installed"
    if marker.exists() and marker.read_text(encoding="utf-8") == wanted:
        return ""
    if shutil.which("npm") is None:
        return "npm is not installed"
    MODULES.mkdir(parents=True, exist_ok=True)
    (MODULES / "package.json").write_text(wanted, encoding="utf-8")
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
    said = subprocess.run(command, cwd=MODULES, check=False, capture_output=True, text=True)
    if said.returncode:
        return f"npm cannot fetch Grafana's packages: {said.stderr.strip()[-200:]}"
    marker.write_text(wanted, encoding="utf-8")
    return ""
