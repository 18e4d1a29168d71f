"""
What kvpressure costs, measured against named peers in the same run. From the repository's root: ``python -m bench``.

- ``reading``: one vLLM exposition read, against prometheus_client's parser.
- ``sidecar``: `kvpressure serve` as a process, against a stand-in for vLLM: CPU, memory, the beat it keeps.
- ``history``: what 15 minutes of readings take in memory, fed without waiting.
- ``scraping``: the sidecar's own `/metrics`, against prometheus_client's instruments with the same values.

Figures are ratios, CPU time or resident memory, never wall time: a busy machine must not decide about a goal.
"""
