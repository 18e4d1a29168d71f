"""
What kvpressure costs, measured against named peers in the same run. From the repository's root: ``python -m bench``.

- ``reading``: one vLLM exposition read, against prometheus_client's parser.
- ``agent``: `kvpressure serve` as a process, against a Prometheus in agent mode that scrapes the same stand-in.
- ``sidecar``: the same process alone: CPU, memory, the beat it keeps.
- ``matrix``: it again, with 1 to 64 engines and up to 5,000 stream events a second, and what each more of them costs.
- ``history``: what 15 minutes of readings take in memory, and hours of them, fed without waiting.
- ``scraping``: the sidecar's own `/metrics`, against prometheus_client's instruments with the same values.
- ``tap``: what it adds to a chunk's way, its CPU and memory, against nginx.
- ``logs``: a million lines read, against mtail.
- ``startup``: until the first scrape is answered, against the imports that any exporter of this make needs.
- ``detect``: from the first preemption to the first page, against the rules that people use today.
- ``advice``: the model behind `kvpressure advise`, against the lab's scheduler.

Figures are ratios, CPU time or resident memory; wall time only beside them, or where it is what a user waits for: a
busy machine must not decide about a goal. ``python -m bench.page`` makes docs/benchmarks.md of them, and
``python -m bench.short`` counts instructions instead of seconds.
"""
