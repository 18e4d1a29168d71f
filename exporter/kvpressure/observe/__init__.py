"""Input and nothing else: what reads vLLM, and hands on what it read."""
