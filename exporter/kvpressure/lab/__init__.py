"""
A vLLM stand-in that really fills a KV cache and preempts. Needs no GPU, no model and no client.

* ``blocks``: the paged KV cache: free list, reference counts, prefix cache
* ``model``, ``scheduler``: vLLM V1's scheduler, one step at a time; no clock, no I/O
* ``engine``: the scheduler on a model clock; when each token came
* ``workload``, ``scenarios``, ``load``: who asks for what, as data, and the users who do it
* ``simulate``: a scenario in pure model time, far faster than real time
* ``metrics``, ``logs``, ``openai``: vLLM 0.32's exposition, log lines and API shapes
* ``host``: the engine in real time; ``server``, ``cli``: all of it over HTTP; ``flags``: what the flags take
* ``users``, ``users_cli``: the same users over HTTP, against any server; ``truth``: what they saw
"""
