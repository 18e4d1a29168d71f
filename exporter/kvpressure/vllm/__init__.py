"""All that knows vLLM's formats: series names, exposition text, log lines. Pure; no I/O and no clock."""
