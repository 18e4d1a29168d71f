"""``python -m kvpressure``."""

import sys

from kvpressure.cli import main

if __name__ == "__main__":
    sys.exit(main())
