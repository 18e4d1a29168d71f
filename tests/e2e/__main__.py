"""
``python -m tests.e2e HOME [--all]``: hold the sidecar against a real vLLM.

Without ``--all`` a quarter of an hour: what is read of this vLLM, that its counters and the sidecar's agree, that the
paused share and p99 are the users' own. With it all experiments, and docs/experiments.md.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from . import shared

_SHORT = (
    ("drift", "--package", "{site}"),
    ("experiments", "{home}", "--only", "control", "not_preemption", "--out", "{home}/short.json.gz"),
    ("accuracy", "{home}", "--requests", "400", "--out", "{home}/accuracy.json"),
)
_ALL = (
    ("experiments", "{home}"),
    ("overnight", "{home}"),
    ("accuracy", "{home}"),
    ("likeness", "{home}"),
    ("cost", "{home}"),
    ("followed", "{home}"),
    ("report",),
)


def main() -> int:
    """Run the parts one after the other; 1 where one of them fails."""
    parser = shared.parser(__doc__)
    parser.add_argument("--all", action="store_true", help="all experiments, and their page")
    args = parser.parse_args()
    site = next((args.home / "venv" / "lib").glob("python3*/site-packages"), None)
    if site is None:
        parser.error(f"there is no vLLM in {args.home}: run tests/e2e/setup.sh VERSION {args.home} first")
    words = {"home": str(args.home), "site": str(site)}
    failed = []
    for name, *flags in _ALL if args.all else _SHORT:
        began = time.monotonic()
        print(f"\n== {name}\n", flush=True)
        command = [sys.executable, "-m", f"tests.e2e.{name}", *(flag.format(**words) for flag in flags)]
        status = _run(command)
        if status in (-signal.SIGINT, -signal.SIGTERM):
            print(f"\nInterrupted in {name}.")
            return 128 - status
        if status:
            failed.append(name)
        print(f"\n({time.monotonic() - began:.0f} s)", flush=True)
    print(f"\nNOT AS EXPECTED: {', '.join(failed)}" if failed else "\nAll as expected.")
    return 1 if failed else 0


def _run(command: Sequence[str]) -> int:
    """
    The exit status of a part.

    One that is interrupted takes a while to stop its vLLM. It is waited for: `subprocess.run` would kill it after a
    quarter of a second, and the vLLM would stay.
    """
    with subprocess.Popen(command) as part:
        # A terminal interrupts the part as well.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: part.terminate())
        return part.wait()


if __name__ == "__main__":
    sys.exit(main())
