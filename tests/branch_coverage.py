"""Fail where too few branches of a coverage report in JSON were taken: ``branch_coverage.py REPORT PERCENT``."""

import json
import sys
from pathlib import Path


def main() -> int:
    """Print the share of branches taken in each package; 1 where one is under the goal."""
    report, goal = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), float(sys.argv[2])
    status = 0
    for package in ("vllm", "derive"):
        summaries = [file["summary"] for name, file in report["files"].items() if f"/kvpressure/{package}/" in name]
        taken = sum(summary["covered_branches"] for summary in summaries)
        share = 100 * taken / sum(summary["num_branches"] for summary in summaries)
        sys.stdout.write(f"branches of {package}/ taken: {share:.1f} % (goal {goal:g} %)\n")
        status |= share < goal
    return status


if __name__ == "__main__":
    sys.exit(main())
