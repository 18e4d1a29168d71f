"""Which layers of a model keep KV of every token: all of them, but for models that mix kinds of layers."""

from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from kvpressure.advise.seen import AdviseError
from kvpressure.settings import shown

Kind = Literal["full", "window", "none"]

_LISTS = ("layer_types", "layers_block_type")
_WINDOW = ("sliding", "chunked", "local", "window")
_NONE = ("linear", "mamba", "conv", "recurrent", "ssm", "mlp", "moe", "rwkv")
_STATE = ("mamba_d_state", "ssm_state_size", "state_size", "linear_num_value_heads", "mamba_d_ssm", "conv_L_cache")
"""Keys that models with a state per request have, whichever of their layers it is in."""

_WINDOWED = (
    "Some of its layers keep only the last tokens of a request (a sliding window); they are counted as if they kept "
    "all, so more fits than this says where requests are longer than the window."
)
_STATEFUL = (
    "Some of its layers keep a state per request instead of KV per token; that state is not counted, and vLLM lays out "
    "blocks of such a model differently, so what fits can be less."
)
_UNTOLD = (
    "Some of its layers keep a state per request instead of KV per token, and the file does not say in a known way "
    "which; all layers are counted, so more fits than this says."
)


def attention_layers(content: Mapping[str, Any], layers: int, path: str) -> tuple[int, tuple[str, ...]]:
    """
    Layers that keep KV of every token, and why a product with them is an approximation.

    Args:
        content: the part of a `config.json` that speaks of the language model.
        layers: all of them.
        path: the file, for the sentence.

    Raises:
        AdviseError: the list of layers is none, is shorter than it should be, or names none that keeps KV.
    """
    name, kinds = _kinds(content, layers, path)
    if kinds is None:
        if any(content.get(key) for key in _STATE):
            return layers, (_UNTOLD,)
        windowed = content.get("sliding_window") and content.get("use_sliding_window") is not False
        return layers, (_WINDOWED,) if windowed else ()
    kept = sum(kind != "none" for kind in kinds)
    if not kept:
        raise AdviseError(
            f"{path}: {name} names no layer with attention; a model without a KV cache needs no advice about its size"
        )
    notes = [_WINDOWED] if "window" in kinds else []
    if "none" in kinds or any(content.get(key) for key in _STATE):
        notes.append(_STATEFUL)
    return kept, tuple(notes)


def _kinds(content: Mapping[str, Any], layers: int, path: str) -> tuple[str, list[Kind] | None]:
    """The key that tells layers apart, and the kind of each; None where there is none."""
    for name in _LISTS:
        if content.get(name) is not None:
            words = content[name]
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise AdviseError(f"{path}: {name} must be a list of words, one per layer, not {shown(words)}")
            if len(words) < layers:
                raise AdviseError(
                    f"{path}: {name} names {len(words)} layers of {layers}; give a complete config.json of the model"
                )
            return name, [_kind(word) for word in words[:layers]]
    pattern = content.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) >= layers:
        return "hybrid_override_pattern", ["full" if letter == "*" else "none" for letter in pattern[:layers]]
    named = _numbered(content)
    if named is not None:
        name, numbers = named
        return name, ["full" if layer in numbers else "none" for layer in range(layers)]
    period, offset = content.get("attn_layer_period"), content.get("attn_layer_offset", 0)
    if _whole(period) and _whole(offset) and period > 0:
        return "attn_layer_period", ["full" if layer % period == offset else "none" for layer in range(layers)]
    return "", None


def _numbered(content: Mapping[str, Any]) -> tuple[str, set[int]] | None:
    """The layers with attention, where a list has their numbers, or a 1 for each."""
    numbers = content.get("attn_layer_indices")
    if isinstance(numbers, list) and all(_whole(number) for number in numbers):
        return "attn_layer_indices", set(numbers)
    linear = content.get("linear_attn_config")
    numbers = linear.get("full_attn_layers") if isinstance(linear, dict) else None
    if isinstance(numbers, list) and all(_whole(number) for number in numbers):
        # Counted from 1, as the models that have it do.
        return "linear_attn_config.full_attn_layers", {number - 1 for number in numbers}
    marks = content.get("attn_type_list")
    if isinstance(marks, list):
        return "attn_type_list", {layer for layer, mark in enumerate(marks) if mark == 1}
    return None


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(word: str) -> Kind:
    """What a layer of this name keeps; one of a name that is not known is counted as if it kept all."""
    lower = word.lower()
    if any(part in lower for part in _WINDOW):
        return "window"
    return "none" if any(part in lower for part in _NONE) else "full"
