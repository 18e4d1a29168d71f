"""``python -m bench.uvlooped serve ...``: kvpressure on uvloop, to see whether that is worth a dependency."""

import asyncio
import sys

import uvloop

from kvpressure.cli import main

if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    sys.exit(main())
