"""``python -m kvpressure.lab``: the same as ``kvpressure lab``."""

import argparse
import sys
from typing import NoReturn

from kvpressure.lab.cli import add_arguments, run


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage text before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main() -> int:
    """Parse the command line and serve."""
    parser = _Parser(prog="kvpressure lab", description="A vLLM stand-in that really fills a KV cache and preempts.")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
