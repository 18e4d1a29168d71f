"""How a server is set up: what it says of itself, and what whoever asks adds to it."""

from dataclasses import dataclass, replace

from kvpressure.advise.seen import Figure, Server
from kvpressure.vllm import names
from kvpressure.vllm.reading import Cache


@dataclass(frozen=True, slots=True)
class Told:
    """
    What the flags say of a server; None where they do not.

    Args:
        max_num_seqs: most requests that run at once.
        max_model_len: most tokens of one request.
        max_num_batched_tokens: token budget of one step.
        replicas: engines that share the traffic of the model.
    """

    max_num_seqs: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    replicas: int | None = None


NOTHING = Told()


def server(told: Told, cache: Cache | None, where: str, replicas: Figure) -> Server:
    """
    A server of what vLLM says of its cache and what was told.

    Args:
        told: what the flags say; it counts more than what was found.
        cache: what vLLM says; None where it does not.
        where: from what `cache` was read, in words or as a query.
        replicas: what was found of them.
    """
    found = Server(
        capacity=_capacity(cache, where),
        block_size=_block_size(cache, where),
        max_num_seqs=_untold("max-num-seqs", "requests"),
        max_model_len=_model_length(cache, where),
        max_num_batched_tokens=_untold("max-num-batched-tokens", "tokens"),
        replicas=replicas,
        cache_dtype=cache.dtype if cache else "",
    )
    return added(found, told)


def added(server: Server, told: Told) -> Server:
    """The server, with what was told in place of what was found, or described."""
    return replace(
        server,
        max_num_seqs=_given(told.max_num_seqs, "max-num-seqs", server.max_num_seqs),
        max_model_len=_given(told.max_model_len, "max-model-len", server.max_model_len),
        max_num_batched_tokens=_given(
            told.max_num_batched_tokens, "max-num-batched-tokens", server.max_num_batched_tokens
        ),
        replicas=_given(told.replicas, "replicas", server.replicas),
    )


def _given(value: int | None, flag: str, found: Figure) -> Figure:
    return found if value is None else Figure(float(value), found.unit, f"--{flag} {value}, as given")


def _untold(flag: str, unit: str) -> Figure:
    return Figure(None, unit, f"vLLM's metrics do not tell it; say --{flag}")


def _capacity(cache: Cache | None, where: str) -> Figure:
    unit = "tokens"
    if cache is None:
        return Figure(None, unit, f"{where} is not there")
    if cache.tokens:
        return Figure(cache.tokens, unit, f"{names.CACHE_TOKENS_LABEL} of {where}")
    if cache.capacity is None or cache.blocks is None or cache.block_size is None:
        return Figure(None, unit, f"{where} does not state the size of the cache")
    blocks = f"{names.CACHE_BLOCKS_LABEL} {cache.blocks:g} * {names.CACHE_BLOCK_SIZE_LABEL} {cache.block_size:g}"
    return Figure(cache.capacity, unit, f"{blocks} of {where}; too high for a hybrid model", estimate=True)


def _block_size(cache: Cache | None, where: str) -> Figure:
    if cache is None or not cache.block_size:
        return Figure(None, "tokens", f"{where} does not state it")
    return Figure(cache.block_size, "tokens", f"{names.CACHE_BLOCK_SIZE_LABEL} of {where}")


def _model_length(cache: Cache | None, where: str) -> Figure:
    if cache is not None and cache.tokens and cache.concurrency:
        source = (
            f"{names.CACHE_TOKENS_LABEL} {cache.tokens:g} / {names.CACHE_CONCURRENCY_LABEL} {cache.concurrency:g} of "
            f"{where}; vLLM rounds it up to whole blocks"
        )
        return Figure(float(round(cache.tokens / cache.concurrency)), "tokens", source, estimate=True)
    return _untold("max-model-len", "tokens")
