"""A server as a workload describes it: its capacity in tokens, in blocks, or from memory and a model's config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpressure.advise import config_json, memory
from kvpressure.advise.keys import known, mapping
from kvpressure.advise.seen import AdviseError, Figure, Server
from kvpressure.lab.model import StepTime
from kvpressure.settings import setting

BLOCK_SIZE = 16
"""vLLM's own default on GPUs."""

_SIZES = ("gpu_memory", "weights", "overhead")
_MEMORY = (*_SIZES, "utilization", "model_config")
_REST = ("tensor_parallel", "kv_dtype")
_WAYS = "capacity_tokens, blocks with block_size, or gpu_memory with utilization, weights, overhead and model_config"


@dataclass(frozen=True, slots=True)
class Described:
    """
    A server.

    Args:
        server: how it is set up.
        step: how long its steps take; None where the file does not say.
        token_bytes: what one token takes in its KV cache; None where the model is not told.
        notes: why the capacity is an approximation, in whole sentences.
    """

    server: Server
    step: StepTime | None
    token_bytes: Figure
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of ``server:``, but for the sizes, which stand beside them."""

    capacity_tokens: int | None = setting(None, "Tokens that the KV cache holds.", "count", low=32, high=10**12)
    blocks: int | None = setting(None, "num_gpu_blocks.", "count", low=2, high=10**10)
    block_size: int | None = setting(None, "Tokens per block.", "count", low=1, high=65_536)
    utilization: float | None = setting(None, "--gpu-memory-utilization.", "ratio", low=0.01, high=1)
    model_config: str | None = setting(None, "The model's config.json.", "file")
    kv_dtype: str = setting("auto", "--kv-cache-dtype.", "text")
    tensor_parallel: int = setting(1, "--tensor-parallel-size.", "count", low=1, high=1024)
    max_num_seqs: int | None = setting(None, "--max-num-seqs.", "count", low=1, high=10**6)
    max_num_batched_tokens: int | None = setting(None, "--max-num-batched-tokens.", "count", low=1, high=10**8)
    max_model_len: int | None = setting(None, "--max-model-len.", "count", low=2, high=10**8)
    replicas: int | None = setting(None, "Servers that share the traffic.", "count", low=1, high=10**5)


@dataclass(frozen=True, slots=True)
class _Step:
    """Keys of ``step_time:``; the least base is that of a step which takes no time, and would never end."""

    base: float | None = setting(None, "Seconds per step.", "duration", low=1e-6, high=5)
    decode: float | None = setting(None, "Seconds per decoding request and step.", "duration", high=60)
    prefill: float | None = setting(None, "Seconds per prompt token.", "duration", high=60)


def read(content: object, path: str) -> Described:
    """
    The server of a workload.

    Args:
        content: what stands under ``server:``.
        path: the workload's file. The model's config.json is found from where that stands.

    Raises:
        AdviseError: a key is unknown, or makes no sense, or the capacity is told in no way or in two.
    """
    where = f"{path}: server"
    given = mapping(content, where)
    keys = known(_Keys, given, where, beside=(*_SIZES, "step_time"))
    ways = [key for key in ("capacity_tokens", "blocks", "gpu_memory") if key in given]
    if len(ways) != 1:
        raise AdviseError(f"{where} must tell the capacity in one way: {_WAYS}")
    stray = [key for key in (*_MEMORY, *_REST) if key in given and ways != ["gpu_memory"] and key != "kv_dtype"]
    if stray:
        raise AdviseError(f"{where}: {stray[0]} says nothing beside {ways[0]}; tell the capacity in one way")
    token = memory.PerToken(Figure(None, "bytes per token", f"{where} has no model_config"), 0, ())
    size = _told(keys.block_size, where, "block_size", "tokens")
    if ways == ["gpu_memory"]:
        capacity, size, token = _from_memory(given, keys, where, path)
    elif ways == ["blocks"]:
        if keys.blocks is None or keys.block_size is None:
            raise AdviseError(f"{where}: block_size is missing; give it beside blocks")
        text = f"{keys.blocks:,} blocks x {keys.block_size} tokens ({where}.blocks, .block_size)"
        capacity = Figure(keys.blocks * keys.block_size, "tokens", text)
    else:
        capacity = _told(keys.capacity_tokens, where, "capacity_tokens", "tokens")
    return Described(
        Server(
            capacity=capacity,
            block_size=size,
            max_num_seqs=_told(keys.max_num_seqs, where, "max_num_seqs", "requests"),
            max_model_len=_told(keys.max_model_len, where, "max_model_len", "tokens"),
            max_num_batched_tokens=_told(keys.max_num_batched_tokens, where, "max_num_batched_tokens", "tokens"),
            replicas=_told(keys.replicas, where, "replicas", "servers"),
            cache_dtype=keys.kv_dtype if "kv_dtype" in given else "",
        ),
        _step_time(given["step_time"], f"{where}.step_time") if "step_time" in given else None,
        token.bytes,
        token.notes,
    )


def _from_memory(
    given: Mapping[Any, Any], keys: _Keys, where: str, path: str
) -> tuple[Figure, Figure, memory.PerToken]:
    """Capacity and block size in tokens, and what a token takes."""
    missing = [key for key in _MEMORY if key not in given]
    if missing or keys.utilization is None or keys.model_config is None:
        raise AdviseError(f"{where}: {missing[0]} is missing; beside gpu_memory, give {', '.join(_MEMORY[1:])}")
    gpu, weights, overhead = (memory.size(given[key], f"{where}: {key}") for key in _SIZES)
    model = config_json.read(str(Path(path).parent / keys.model_config))
    asked = memory.Memory(gpu, keys.utilization, weights, overhead, keys.tensor_parallel)
    try:
        token = memory.per_token(model, keys.kv_dtype)
        found = memory.capacity(asked, token, keys.block_size or BLOCK_SIZE)
    except AdviseError as fault:
        # Its sentence names the flag, which here is the key of the same name.
        raise AdviseError(f"{where}: {fault}") from fault
    told = _told(keys.block_size, where, "block_size", "tokens")
    default = Figure(BLOCK_SIZE, "tokens", f"vLLM's own default: {where} has no block_size", estimate=True)
    source = f"{found.tokens.source}; {found.room.source}; {token.bytes.source}"
    return Figure(found.tokens.value, "tokens", source, estimate=True), default if told.value is None else told, token


def _told(value: float | None, where: str, key: str, unit: str) -> Figure:
    return Figure(value, unit, f"{where}.{key}" if value is not None else f"{where} has no {key}")


def _step_time(content: object, where: str) -> StepTime:
    keys = known(_Step, mapping(content, where), where)
    parts: Mapping[str, float | None] = {"base": keys.base, "decode": keys.decode, "prefill": keys.prefill}
    for name, value in parts.items():
        if value is None:
            raise AdviseError(f"{where}: {name} is missing; give base, decode and prefill, or no step_time at all")
    return StepTime(keys.base or 0.0, keys.decode or 0.0, keys.prefill or 0.0)
