"""What a model's KV cache depends on, from its `config.json` as Hugging Face models have it."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvpressure import files
from kvpressure.advise.layers import attention_layers
from kvpressure.advise.seen import AdviseError
from kvpressure.settings import shown

_MOST = 1_000_000
"""No model has as many layers or heads, or a head as wide."""

_NESTED = ("text_config", "llm_config", "language_config")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads")
_DTYPES = ("dtype", "torch_dtype")

_MARKS: Mapping[str, str] = {
    "index_head_dim": "Its sparse attention keeps an index of the tokens beside the KV cache, which is not counted.",
    "num_kv_shared_layers": "Some of its layers share the KV cache of another, and are counted all the same.",
    "block_configs": "Its layers differ in KV heads (block_configs), and are counted as if all were alike.",
    "is_encoder_decoder": "It has an encoder, whose KV for cross-attention is not counted.",
}
"""Keys of models whose cache is not the plain product, and why. None of them is looked into."""


@dataclass(frozen=True, slots=True)
class Model:
    """
    The shape of a model's KV cache.

    Args:
        file: the `config.json`.
        layers: those that keep something of every token.
        heads: KV heads per layer; 0 where the model keeps one latent per token and layer instead (MLA).
        dim: numbers per head, or in the latent.
        dtype: of the model, as the file says; empty where it does not.
        quantized: whether the checkpoint asks for a quantized KV cache by itself.
        notes: why the product is an approximation, in whole sentences; empty where it is none.
    """

    file: str
    layers: int
    heads: int
    dim: int
    dtype: str
    quantized: bool
    notes: tuple[str, ...]


def read(path: str) -> Model:
    """
    The model that a `config.json` describes.

    Raises:
        AdviseError: it cannot be read, is not JSON, or lacks a key that is needed or has one that makes no sense.
    """
    whole = _load(path)
    keys = _Keys(path, whole)
    layers = keys.count(_LAYERS, "give the config.json of a language model")
    kept, notes = attention_layers(keys.content, layers, path)
    found = dict.fromkeys((*notes, *(why for key, why in _MARKS.items() if keys.content.get(key))))
    if keys.content.get("kv_lora_rank") is not None:
        heads, dim = 0, keys.count(("kv_lora_rank",)) + keys.count(("qk_rope_head_dim",))
        found |= {
            "It keeps one latent per token and layer (MLA), where vLLM supports that for this model; a vLLM that does "
            "not, or has it switched off, keeps K and V of every head and needs many times more.": None
        }
    else:
        heads, dim = _heads(keys)
        if keys.content.get("v_head_dim") not in (None, dim):
            found |= {"Its V is not as wide as its K (v_head_dim), and is counted as if it were.": None}
    return Model(path, kept, heads, dim, _dtype(keys, whole), _quantized(keys.content, whole), tuple(found))


def _load(path: str) -> dict[str, Any]:
    try:
        content = json.loads(files.read(path).decode("utf-8"))
    except OSError as fault:
        raise AdviseError(f"{path}: cannot be read: {fault.strerror}; give the model's config.json") from fault
    except UnicodeDecodeError as fault:
        raise AdviseError(f"{path}: is not UTF-8 text; give the model's config.json") from fault
    except (ValueError, RecursionError) as fault:
        where = f" in line {fault.lineno}" if isinstance(fault, json.JSONDecodeError) else ""
        raise AdviseError(f"{path}: is not JSON{where}; give the model's config.json") from fault
    if not isinstance(content, dict):
        raise AdviseError(f"{path}: must be a JSON object, not {shown(content)}; give the model's config.json")
    return content


class _Keys:
    """The part of a configuration that speaks of the language model."""

    def __init__(self, path: str, whole: dict[str, Any]) -> None:
        self.path, self.content, self.prefix = path, whole, ""
        if all(whole.get(name) is None for name in _LAYERS):
            for name in _NESTED:
                if isinstance(inner := whole.get(name), dict):
                    self.content, self.prefix = inner, f"{name}."
                    return

    def find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """The first of these keys that is set, with its value; the first of all with None where none is."""
        attention = self.content.get("attn_config")
        for prefix, place in (("", self.content), ("attn_config.", attention if isinstance(attention, dict) else {})):
            for name in names:
                if place.get(name) is not None:
                    return prefix + name, place[name]
        return names[0], None

    def count(self, names: tuple[str, ...], otherwise: str = "give a complete config.json of the model") -> int:
        """A whole number of at least 1."""
        name, value = self.find(names)
        where = f"{self.path}: {self.prefix}{name}"
        if value is None:
            raise AdviseError(f"{where} is missing; {otherwise}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _MOST or value % 1:
            raise AdviseError(f"{where} must be a whole number from 1 to {_MOST}, not {_value(value)}")
        return int(value)


def _value(value: object) -> str:
    """A number of thousands of digits has no text."""
    return "one far beyond" if isinstance(value, int) and abs(value) > sys.float_info.max else shown(value)


def _heads(keys: _Keys) -> tuple[int, int]:
    """KV heads and numbers per head."""
    name, value = keys.find(_KV_HEADS)
    if value is not None:
        kv_heads = keys.count(_KV_HEADS)
    elif keys.content.get("multi_query"):
        kv_heads = 1
    else:
        kv_heads = keys.count(_HEADS, "it, or num_key_value_heads, must be there")
    heads = keys.count(_HEADS) if keys.find(_HEADS)[1] is not None else None
    if heads is not None and heads % kv_heads:
        raise AdviseError(
            f"{keys.path}: {keys.prefix}{name} is {kv_heads}, which does not divide the {heads} attention heads; "
            "give the config.json as the model was published"
        )
    if keys.find(("head_dim",))[1] is not None:
        return kv_heads, keys.count(("head_dim",))
    if heads is None or keys.find(_HIDDEN)[1] is None:
        raise AdviseError(
            f"{keys.path}: {keys.prefix}head_dim is missing, and so is hidden_size or num_attention_heads to tell it "
            "from; give a complete config.json of the model"
        )
    hidden = keys.count(_HIDDEN)
    if hidden % heads:
        raise AdviseError(
            f"{keys.path}: {keys.prefix}head_dim is missing, and hidden_size {hidden} is no multiple of {heads} "
            "attention heads; add head_dim"
        )
    return kv_heads, hidden // heads


def _dtype(keys: _Keys, whole: dict[str, Any]) -> str:
    for content in (keys.content, whole):
        for name in _DTYPES:
            if content.get(name) is not None:
                if not isinstance(content[name], str):
                    raise AdviseError(f"{keys.path}: {name} must be text like bfloat16, not {shown(content[name])}")
                return str(content[name]).removeprefix("torch.")
    return ""


def _quantized(*contents: Mapping[str, Any]) -> bool:
    """Whether the checkpoint brings scales for a quantized KV cache: of compressed-tensors, or of ModelOpt."""
    found = [content.get("quantization_config") for content in contents]
    return any(
        quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
        for quantization in found
        if isinstance(quantization, dict)
    )
