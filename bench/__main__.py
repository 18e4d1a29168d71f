"""``python -m bench``: run the benchmarks, print the table, write results/results.json."""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence

from bench import advice, agent, detect, history, logs, matrix, reading, results, scraping, sidecar, startup, tap
from bench.results import Row

BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "reading": reading.run,
    "agent": agent.run,
    "sidecar": sidecar.run,
    "matrix": matrix.run,
    "history": history.run,
    "scraping": scraping.run,
    "tap": tap.run,
    "logs": logs.run,
    "startup": startup.run,
    "detect": detect.run,
    "advice": advice.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run what is asked for.

    Returns:
        0, or 2 where a benchmark failed to run, or with --strict 1 where a goal is not met.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description="What kvpressure costs, against its peers.")
    parser.add_argument("benchmark", nargs="*", help=f"some of {', '.join(BENCHMARKS)}; all where none is named")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 where a goal is not met")
    parser.add_argument(
        "--minutes",
        type=float,
        help="how long sidecars of `matrix` are watched, those with many events one minute at the most; "
        "10 is the long form (default: 0.25)",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.benchmark if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}")
    chosen = BENCHMARKS | ({"matrix": lambda: matrix.run(60 * options.minutes)} if options.minutes else {})
    rows: dict[str, list[Row]] = {}
    failed: list[str] = []
    for name in options.benchmark or BENCHMARKS:
        print(f"running {name} ...", file=sys.stderr)
        try:
            rows[name] = chosen[name]()
        except Exception:  # noqa: BLE001  # the others are still worth having
            traceback.print_exc()
            failed.append(name)
    results.write(rows, failed)
    every = [row for some in rows.values() for row in some]
    print(results.table(every))
    print("Unless a row says otherwise, times are process CPU time, median (lowest-highest) of rounds; memory VmRSS.")
    for name in failed:
        print(f"{name} failed to run, see above")
    if failed:
        return 2
    return int(options.strict and any(row.met is False for row in every))


if __name__ == "__main__":
    sys.exit(main())
