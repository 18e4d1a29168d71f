"""Faults on the real sidecar, minutes or hours long, held against an independent truth: ``python -m tests.soak``."""
