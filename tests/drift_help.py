# small helpers, named for what they do
"""What the tests of the drift check share."""

from pathlib import Path

from e2e import drift

FIXTURES = Path(__file__).parent / "fixtures"
REAL = (FIXTURES / "lab" / "vllm-0.32.0.prom").read_text(encoding="utf-8")
"""The `vllm:` families of a real vLLM 0.32.0."""


def ran(capsys, *words):
    """Exit status and what was printed."""
    status = drift.main([str(word) for word in words])
    said = capsys.readouterr()
    return status, said.out, said.err


def exposition(tmp_path, text):
    """A file with an exposition."""
    path = tmp_path / "vllm.prom"
    path.write_text(text, encoding="utf-8")
    return path


def row(report, field):
    """The cells of a family's row in a report: found as, against the table."""
    line = next(line for line in report.splitlines() if line.replace("*", "").startswith(f"| {field} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]
