"""
Fuzzing of the readers of foreign input: ``python -m tests.fuzz SECONDS [what ...]``.

Each module here with a ``TARGETS`` is fuzzed: functions by name that take bytes and raise where something is wrong, and
beside it, if there is one, a ``CORPUS`` of inputs to begin with. Where atheris can be imported (``pip install
'.[fuzz]'``), it looks for inputs that reach new code; else a mutator of its own changes the corpus at random.
"""
