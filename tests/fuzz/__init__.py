"""
Fuzzing of the readers of foreign input: ``python -m tests.fuzz SECONDS [what ...]``.

Each module here with a ``TARGETS`` is fuzzed: functions by name that take bytes and raise where something is wrong, and
beside it, if there is one, a ``CORPUS`` of inputs to begin with. A mutator that knows of lines changes the corpus at
random; where atheris can be imported (``pip install '.[fuzz]'``), it has half of the time to look for inputs that reach
new code. Each finds what the other does not: much of what readers do happens inside regular expressions, of which no
coverage is known.
"""
