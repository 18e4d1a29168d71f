"""
A real vLLM with the sidecar beside it: ``make e2e-vllm``, and the experiments behind docs/experiments.md.

Not part of ``make test``: the server takes two gigabytes and the experiments an hour. `setup.sh` installs it, `stand`
starts the processes, `play` sends users and keeps what they and the sidecar saw, and the other modules each answer one
question: `experiments`, `overnight`, `accuracy`, `likeness`, `cost`, `followed`, `drift`. `report` makes the page.
"""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parents[1])
if _TESTS not in sys.path:
    # As pytest does: what helps the tests helps here too.
    sys.path.append(_TESTS)
