"""The arithmetic of KV capacity: bytes per token, room on the GPU, tokens, blocks and requests. All of it is pure."""

import math
import re
from dataclasses import dataclass

from kvpressure import tables
from kvpressure.advise.config_json import Model
from kvpressure.advise.seen import AdviseError, Figure
from kvpressure.derive import capacity as derived

GIB = 1024**3
"""Bytes in what a card's box calls a gigabyte."""

_UNITS = {"": GIB, "G": GIB, "GB": GIB, "GIB": GIB, "M": 1024**2, "MB": 1024**2, "MIB": 1024**2}
_LARGEST = 4096 * GIB  # what nvidia-smi says in MiB is beyond it where its unit was forgotten

_MODEL_BYTES = {"float16": 2, "half": 2, "bfloat16": 2, "float32": 2, "float": 2}
"""By the model's own type. vLLM runs a float32 checkpoint in 16 bits unless --dtype says otherwise."""

_KV_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
"""By vLLM's --kv-cache-dtype; float32 is none of its names, and means a vLLM with --dtype float32."""

KV_DTYPES = ("auto", *_KV_BYTES)


@dataclass(frozen=True, slots=True)
class PerToken:
    """
    What one token takes.

    Args:
        bytes: in the KV cache, on all GPUs together but for copies.
        heads: KV heads, which are divided among the GPUs; 0 for a latent, of which each GPU has a copy.
        notes: why it is an approximation, in whole sentences; empty where it is none.
    """

    bytes: Figure
    heads: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """
    What vLLM has to divide up.

    Args:
        gpu: bytes of one GPU.
        utilization: the share of it that vLLM may use, over 0 to 1 (--gpu-memory-utilization).
        weights: bytes of the model, all of it.
        overhead: bytes that each GPU needs for all else: activations at the peak, CUDA graphs, the runtime.
        gpus: that share the model (--tensor-parallel-size).
    """

    gpu: float
    utilization: float
    weights: float
    overhead: float
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Capacity:
    """
    What the KV cache holds.

    Args:
        room: bytes for it on each GPU.
        tokens: that fit, in whole blocks.
        blocks: that fit, the one among them that vLLM keeps for itself.
    """

    room: Figure
    tokens: Figure
    blocks: Figure


def size(given: object, where: str) -> float:
    """
    Bytes in a size like ``48``, ``48GB``, ``48GiB``, ``13.5GB`` or ``900MB``.

    A gigabyte is 1024 MiB however it is spelled, and a number alone is in gigabytes: a card that is sold with 48 GB has
    about 48 GiB, and vLLM's log means the same. Files are often given in units of 1000: 13.5 GB of them are 12.6 GiB.

    Raises:
        AdviseError: it is no such size; the sentence starts with `where`.
    """
    known = isinstance(given, str | float) or (isinstance(given, int) and abs(given) <= _LARGEST)
    text = str(given).strip() if known and not isinstance(given, bool) else ""
    parts = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12}) ?([GMgm]?(?:[iI]?[bB])?)", text, re.ASCII)
    if parts is None or parts[2].upper() not in _UNITS:
        raise AdviseError(f'{where} must be a size like "48", "48GB", "48GiB" or "900MB"')
    found = float(parts[1]) * _UNITS[parts[2].upper()]
    if found > _LARGEST:
        raise AdviseError(f"{where} must be at most {_LARGEST / GIB:,.0f} GiB; a number alone is in GiB")
    return found


def per_token(model: Model, kv_dtype: str = "auto") -> PerToken:
    """
    Bytes that one token takes in the KV cache of a model.

    Args:
        model: its shape.
        kv_dtype: one of KV_DTYPES; ``auto`` is the model's own.

    Raises:
        AdviseError: the type is not known, or the model's own is not and none is given.
    """
    width = _width(model, kv_dtype)
    source = f"{model.file}" if kv_dtype == "auto" else f"{model.file}, --kv-dtype {kv_dtype}"
    estimate = bool(model.notes)
    if model.heads == 0:
        return PerToken(
            Figure(
                model.layers * model.dim * width,
                "bytes per token",
                f"{model.layers} layers x {model.dim} numbers of the latent x {_bytes(width)} ({source})",
                estimate,
            ),
            0,
            model.notes,
        )
    return PerToken(
        Figure(
            2 * model.layers * model.heads * model.dim * width,
            "bytes per token",
            f"2 (K and V) x {model.layers} layers x {_many(model.heads, 'KV head')} x {model.dim} head dim x "
            f"{_bytes(width)} ({source})",
            estimate,
        ),
        model.heads,
        model.notes,
    )


def capacity(memory: Memory, token: PerToken, block_size: int) -> Capacity:
    """
    What fits: (GPU x utilization - weights - overhead) / bytes per token, in whole blocks.

    Several GPUs divide the weights and the KV heads among them; where there are fewer KV heads than GPUs, or a latent,
    they have copies. Each figure is an estimate: vLLM measures at its start what it needs beside the cache.

    Raises:
        AdviseError: a number is out of its range, or nothing is left for the cache.
    """
    _check(memory, token, block_size)
    room = _room(memory)
    share, each = _share(token, memory.gpus)
    blocks = math.floor((room.value or 0.0) / share / block_size)
    if blocks < 2:  # noqa: PLR2004  # one is vLLM's own
        raise AdviseError(
            f"{_gib(room.value or 0.0)} are left for the KV cache, which is not even two blocks of {block_size} tokens "
            f"({room.source}); give vLLM more memory (--gpu-memory, --utilization) or a smaller model (--weights)"
        )
    return Capacity(
        room,
        Figure(
            blocks * block_size,
            "tokens",
            f"{_gib(room.value or 0.0)} / {each}, in whole blocks of {block_size} tokens",
            estimate=True,
        ),
        Figure(
            blocks,
            "blocks",
            f"{_gib(room.value or 0.0)} / {each} / {block_size} tokens per block, rounded down",
            estimate=True,
        ),
    )


def fits(tokens: Figure, prompt: Figure, answer: Figure) -> Figure:
    """
    Requests of this footprint, prompt plus answer, that the cache holds at their full length: whole ones.

    None where the capacity or a length is not known, or the footprint is nothing.
    """
    seats = derived.seats(tokens.value, prompt.value, answer.value)
    if seats is None:
        why = next((f.source for f in (tokens, prompt, answer) if f.value is None), "the footprint is 0 tokens")
        return Figure(None, "requests", why)
    numbers = [tables.number(figure.value) for figure in (tokens, prompt, answer)]
    return Figure(
        math.floor(seats),
        "requests",
        f"{numbers[0]} tokens / ({numbers[1]} prompt + {numbers[2]} answer), rounded down",
        estimate=True,
    )


def _width(model: Model, kv_dtype: str) -> int:
    if kv_dtype in _KV_BYTES:
        return _KV_BYTES[kv_dtype]
    known = ", ".join(_KV_BYTES)
    if kv_dtype != "auto":
        raise AdviseError(f"--kv-dtype must be one of auto, {known}")
    if model.quantized:
        raise AdviseError(
            f"{model.file}: quantization_config brings a quantized KV cache, which vLLM uses or not by its version; "
            "say with --kv-dtype which it is, as fp8 or bfloat16"
        )
    if not model.dtype:
        raise AdviseError(f"{model.file}: dtype (torch_dtype) is missing; say with --kv-dtype what it is, as bfloat16")
    if model.dtype not in _MODEL_BYTES:
        raise AdviseError(
            f"{model.file}: dtype is none of {', '.join(_MODEL_BYTES)}; say with --kv-dtype what vLLM uses, as bfloat16"
        )
    return _MODEL_BYTES[model.dtype]


def _check(memory: Memory, token: PerToken, block_size: int) -> None:
    """Everything that the caller cannot leave to `size`."""
    if not 0.0 < memory.utilization <= 1.0:
        raise AdviseError("--utilization must be over 0 and at most 1, as vLLM's --gpu-memory-utilization")
    if memory.gpu <= 0.0:
        raise AdviseError("--gpu-memory must be more than 0; give what the card has, as 48GB")
    if memory.gpus < 1:
        raise AdviseError("--tensor-parallel must be at least 1; give the number of GPUs that share the model")
    if block_size < 1:
        raise AdviseError("--block-size must be at least 1; vLLM's own is 16")
    few, many = sorted((memory.gpus, token.heads))
    if few and many % few:
        raise AdviseError(
            f"--tensor-parallel {memory.gpus} cannot be: {_many(token.heads, 'KV head')} cannot be divided among as "
            "many GPUs; give a divisor or a multiple"
        )


def _room(memory: Memory) -> Figure:
    """Bytes on each GPU."""
    weights = _gib(memory.weights) + (f" / {memory.gpus} GPUs" if memory.gpus > 1 else "")
    source = (
        f"{_gib(memory.gpu)} x {memory.utilization:g} - {weights} - {_gib(memory.overhead)} "
        "(--gpu-memory x --utilization - --weights - --overhead)"
    )
    room = memory.gpu * memory.utilization - memory.weights / memory.gpus - memory.overhead
    if room <= 0.0:
        raise AdviseError(
            f"nothing is left for the KV cache: {source} is {_gib(room)}; give vLLM more memory (--gpu-memory, "
            "--utilization) or a smaller model (--weights)"
        )
    return Figure(room, "bytes on each GPU" if memory.gpus > 1 else "bytes", source, estimate=True)


def _share(token: PerToken, gpus: int) -> tuple[float, str]:
    """Bytes of a token on one GPU, and how they are had."""
    whole = token.bytes.value or 0.0
    each = f"{whole:,.0f} bytes per token"
    parts = min(gpus, token.heads) if token.heads else 1
    return whole / parts, f"({each} / {parts} GPUs)" if parts > 1 else each


def _gib(value: float) -> str:
    return f"{value / GIB:,.4g} GiB"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _bytes(width: int) -> str:
    return _many(width, "byte")
