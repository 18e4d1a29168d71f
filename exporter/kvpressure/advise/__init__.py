"""Capacity advice: what limits an engine, and what each change would do, from what was seen."""
