"""Make vLLM's KV-cache pressure visible: preemptions, pinned cache, paused users."""

__version__ = "0.1.0"
