"""The arithmetic of KV capacity, from a model's config.json and the memory of a GPU."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvpressure.advise import config_json
from kvpressure.advise.memory import GIB, Memory, PerToken, capacity, fits, per_token, size
from kvpressure.advise.seen import AdviseError, Figure

LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "torch_dtype": "float16",
}
CARD = Memory(48 * GIB, 0.60, 13.5 * GIB, 2 * GIB)


@pytest.fixture
def model(tmp_path):
    """Writes a config.json and reads it."""

    def write(content=None, **keys):
        file = tmp_path / "config.json"
        whole = (LLAMA if content is None else content) | keys
        file.write_text(json.dumps({key: value for key, value in whole.items() if value != "none"}))
        return config_json.read(str(file))

    return write


def token(of_bytes, heads=32):
    return PerToken(Figure(of_bytes, "bytes per token", "given"), heads, ())


def test_without_gqa(model):
    """32 layers, hidden 4096, FP16, no KV heads of their own: 512 KiB per token, with the product as its source."""
    found = per_token(model())

    assert (found.bytes.value, found.bytes.estimate, found.notes) == (512 * 1024, False, ())
    assert found.bytes.source.startswith("2 (K and V) x 32 layers x 32 KV heads x 128 head dim x 2 bytes (")
    assert found.bytes.source.endswith("config.json)")


def test_with_gqa(model):
    """8 KV heads of 128: 128 KiB per token."""
    assert per_token(model(num_key_value_heads=8, head_dim=128)).bytes.value == 128 * 1024


def test_known_card(model):
    """48 GB at 0.60 with 13.5 GB of weights and 2 GB overhead: 13.3 GB, 26,600 tokens, 1,700 blocks, 24 requests."""
    found = capacity(CARD, per_token(model()), 16)
    seats = fits(found.tokens, Figure(850, "tokens", ""), Figure(250, "tokens", ""))

    assert found.room.value / GIB == pytest.approx(13.3, rel=0.03)
    assert found.tokens.value == pytest.approx(26_600, rel=0.03)
    assert found.blocks.value == pytest.approx(1700, rel=0.03)
    assert seats.value == 24
    assert found.room.source.startswith("48 GiB x 0.6 - 13.5 GiB - 2 GiB (")
    assert found.tokens.source == "13.3 GiB / 524,288 bytes per token, in whole blocks of 16 tokens"
    assert found.blocks.source == "13.3 GiB / 524,288 bytes per token / 16 tokens per block, rounded down"
    assert seats.source == "27,232 tokens / (850 prompt + 250 answer), rounded down"


@given(
    room=some.integers(1, 10**13),
    each=some.integers(1, 10**7),
    block=some.sampled_from([1, 8, 16, 128]),
)
def test_whole_blocks(room, each, block):
    """Tokens are whole blocks: they fit into the room, and one block more would not."""
    try:
        found = capacity(Memory(room, 1.0, 0.0, 0.0), token(each), block)
    except AdviseError:
        assert room < 2 * block * each + each
        return

    assert found.tokens.value == found.blocks.value * block
    assert found.tokens.value * each <= room * (1 + 1e-12)
    assert (found.tokens.value + block) * each > room * (1 - 1e-12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("48", 48 * GIB),
        ("48GB", 48 * GIB),
        ("48GiB", 48 * GIB),
        ("48 gb", 48 * GIB),
        ("13.5GB", 13.5 * GIB),
        ("900MB", 900 * 1024**2),
        ("0", 0),
        (80, 80 * GIB),
        (0.5, GIB / 2),
    ],
)
def test_sizes(text, expected):
    """A gigabyte is 1024 MiB however it is spelled, and a number alone is in gigabytes."""
    assert size(text, "--gpu-memory") == expected


@pytest.mark.parametrize("text", ["", "GB", "-1", "48TB", "48GBit", "4 8", "1e9", "nan", "inf", True, None, [48], "٤٨"])
def test_no_size(text):
    """What is no size is refused in one sentence that says what one looks like."""
    with pytest.raises(AdviseError) as caught:
        size(text, "--weights")
    assert str(caught.value) == '--weights must be a size like "48", "48GB", "48GiB" or "900MB"'


def test_too_large_a_size():
    """A size in bytes, given as a number alone, is taken for gigabytes and refused."""
    with pytest.raises(AdviseError, match="--gpu-memory must be at most 4,096 GiB; a number alone is in GiB"):
        size("51539607552", "--gpu-memory")


@pytest.mark.parametrize(
    ("keys", "kv_dtype", "width"),
    [
        ({}, "auto", 2),
        ({}, "fp8", 1),
        ({}, "fp8_e5m2", 1),
        ({}, "float32", 4),
        ({"torch_dtype": "float32"}, "auto", 2),
        ({"torch_dtype": "torch.bfloat16"}, "auto", 2),
        ({"torch_dtype": "none", "dtype": "bfloat16"}, "auto", 2),
        ({"torch_dtype": "none"}, "bfloat16", 2),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "fp8", 1),
        ({"quantization_config": {"kv_cache_scheme": None}}, "auto", 2),
    ],
)
def test_width(model, keys, kv_dtype, width):
    """The width is that of --kv-dtype, else of the model as vLLM runs it: 16 bits."""
    assert per_token(model(**keys), kv_dtype).bytes.value == 2 * 32 * 32 * 128 * width


@pytest.mark.parametrize(
    ("keys", "kv_dtype", "sentence"),
    [
        ({}, "int3", "--kv-dtype must be one of auto, float16, bfloat16, float32, fp8, fp8_e4m3, fp8_e5m2, fp8_inc"),
        ({"torch_dtype": "none"}, "auto", "dtype (torch_dtype) is missing; say with --kv-dtype what it is"),
        ({"torch_dtype": "int4"}, "auto", "say with --kv-dtype what vLLM uses"),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "auto", "say with --kv-dtype which it is"),
    ],
)
def test_no_width(model, keys, kv_dtype, sentence):
    """A width that is not told is asked for, not guessed."""
    with pytest.raises(AdviseError) as caught:
        per_token(model(**keys), kv_dtype)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"num_key_value_heads": None}, 32 * 32 * 128),
        ({"multi_query": True}, 32 * 1 * 128),
        ({"multi_query": True, "num_kv_heads": 8}, 32 * 8 * 128),
        ({"attn_config": {"kv_n_heads": 4}}, 32 * 4 * 128),
        ({"head_dim": 64, "hidden_size": "none"}, 32 * 32 * 64),
        ({"head_dim": 256.0}, 32 * 32 * 256),
        ({"num_hidden_layers": "none", "n_layer": 2}, 2 * 32 * 128),
    ],
)
def test_spellings(model, keys, expected):
    """Models spell layers and heads in several ways; what is null is not there."""
    found = model(**keys)

    assert found.layers * found.heads * found.dim == expected


def test_nested(model):
    """Of a model that sees pictures too, the part about text counts; the type may stand above it."""
    found = model({"text_config": LLAMA | {"torch_dtype": None}, "torch_dtype": "bfloat16", "hidden_size": 7})

    assert per_token(found).bytes.value == 512 * 1024
    with pytest.raises(AdviseError, match=r"config.json: text_config.num_hidden_layers must be a whole number"):
        model({"text_config": LLAMA | {"num_hidden_layers": -1}})


def test_mla(model):
    """DeepSeek keeps one latent per token and layer, with no factor of 2, and the number is said to be approximate."""
    found = per_token(model(num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64, torch_dtype="bfloat16"))

    assert (found.bytes.value, found.bytes.estimate, found.heads) == (61 * 576 * 2, True, 0)
    assert found.bytes.source.startswith("61 layers x 576 numbers of the latent x 2 bytes (")
    assert ["one latent per token and layer (MLA)" in note for note in found.notes] == [True]


MIXED = ["linear_attention"] * 24 + ["full_attention"] * 8


@pytest.mark.parametrize(
    ("keys", "layers", "says"),
    [
        ({"layer_types": ["full_attention"] * 32}, 32, []),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16}, 32, ["sliding window"]),
        ({"layer_types": MIXED}, 8, ["state per request"]),
        ({"layer_types": ["never_heard_of"] * 32}, 32, []),
        ({"layers_block_type": ["mamba", "attention"] * 16}, 16, ["state per request"]),
        ({"layer_types": [*MIXED, "full_attention"]}, 8, ["state per request"]),
        ({"hybrid_override_pattern": "M-M*" * 8}, 8, ["state per request"]),
        ({"attn_layer_indices": [3, 9]}, 2, ["state per request"]),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, 4, ["state per request"]),
        ({"attn_type_list": [1] + [0] * 31}, 1, ["state per request"]),
        ({"linear_attn_config": {"full_attn_layers": [4, 32]}}, 2, ["state per request"]),
        ({"mamba_d_state": 128}, 32, ["does not say in a known way"]),
        ({"sliding_window": 4096}, 32, ["sliding window"]),
        ({"sliding_window": 4096, "use_sliding_window": False}, 32, []),
        ({"sliding_window": None}, 32, []),
        ({"index_head_dim": 128}, 32, ["sparse attention"]),
        ({"num_kv_shared_layers": 10}, 32, ["share the KV cache"]),
        ({"v_head_dim": 64}, 32, ["V is not as wide"]),
    ],
)
def test_mixed_layers(model, keys, layers, says):
    """Layers with a state keep no token; what makes the product an approximation is said in a sentence."""
    found = model(**keys)
    result = per_token(found)

    assert found.layers == layers
    assert len(result.notes) == len(says)
    assert all(part in note for part, note in zip(says, result.notes, strict=True))
    assert result.bytes.estimate is bool(says)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"num_hidden_layers": "none"}, "num_hidden_layers is missing; give the config.json of a language model"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1 to 1000000, not '0'"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers must be a whole number from 1 to 1000000, not '1.5'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number from 1 to 1000000, not 'True'"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number from 1 to 1000000, not '32'"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers must be a whole number from 1 to 1000000, not one far"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers must be a whole number from 1 to 1000000, not 'nan'"),
        ({"num_attention_heads": "none"}, "num_attention_heads is missing; it, or num_key_value_heads, must be there"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5, which does not divide the 32 attention heads"),
        ({"num_key_value_heads": 64}, "num_key_value_heads is 64, which does not divide the 32 attention heads"),
        ({"hidden_size": "none"}, "head_dim is missing, and so is hidden_size or num_attention_heads"),
        ({"hidden_size": 4097}, "head_dim is missing, and hidden_size 4097 is no multiple of 32 attention heads"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing; give a complete config.json of the model"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types names 31 layers of 32"),
        ({"layer_types": "full"}, "layer_types must be a list of words, one per layer, not 'full'"),
        ({"layer_types": ["mamba"] * 32}, "layer_types names no layer with attention"),
        ({"torch_dtype": 16}, "torch_dtype must be text like bfloat16, not '16'"),
    ],
)
def test_senseless_keys(model, keys, sentence):
    """Each missing or senseless key is one sentence that names file and key."""
    with pytest.raises(AdviseError) as caught:
        model(**keys)
    assert str(caught.value).partition("config.json: ")[2].startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not JSON in line 1; give the model's config.json"),
        (b'{"a":\n1,}', "is not JSON in line 2; give the model's config.json"),
        (b"\x80\x02", "is not UTF-8 text; give the model's config.json"),
        (b"[1]", "must be a JSON object, not 'list'; give the model's config.json"),
        (b"[" * 100_000, "is not JSON; give the model's config.json"),
        (b" " * 1_100_000, "cannot be read: is larger than 1024 KiB; give the model's config.json"),
    ],
)
def test_no_config(tmp_path, content, sentence):
    """A file that is no config.json is refused in one sentence."""
    file = tmp_path / "config.json"
    file.write_bytes(content)

    with pytest.raises(AdviseError) as caught:
        config_json.read(str(file))
    assert str(caught.value) == f"{file}: {sentence}"


def test_no_file(tmp_path):
    """Neither a folder nor a file that is not there is a traceback."""
    with pytest.raises(AdviseError, match=r"cannot be read: Is a directory; give the model's config\.json"):
        config_json.read(str(tmp_path))
    with pytest.raises(AdviseError, match=r"cannot be read: No such file or directory"):
        config_json.read(str(tmp_path / "gone.json"))


@pytest.mark.parametrize(
    ("memory", "sentence"),
    [
        (Memory(16 * GIB, 0.5, 13.5 * GIB, 0.0), "nothing is left for the KV cache: 16 GiB x 0.5 - 13.5 GiB - 0 GiB"),
        (Memory(15.5 * GIB, 1.0, 13.5 * GIB, 2 * GIB), "nothing is left for the KV cache"),
        (Memory(GIB, 1.0, GIB - 1e6, 0.0), "which is not even two blocks of 16 tokens"),
        (Memory(48 * GIB, 0.0, 0.0, 0.0), "--utilization must be over 0 and at most 1"),
        (Memory(48 * GIB, 60.0, 0.0, 0.0), "--utilization must be over 0 and at most 1"),
        (Memory(0.0, 0.9, 0.0, 0.0), "--gpu-memory must be more than 0"),
        (Memory(48 * GIB, 0.9, 0.0, 0.0, 0), "--tensor-parallel must be at least 1"),
        (Memory(48 * GIB, 0.9, 0.0, 0.0, 3), "--tensor-parallel 3 cannot be: 32 KV heads cannot be divided"),
    ],
)
def test_no_room(memory, sentence):
    """Where nothing is left, or a number makes no sense, one sentence says what to do."""
    with pytest.raises(AdviseError) as caught:
        capacity(memory, token(512 * 1024), 16)
    assert sentence in str(caught.value)
    with pytest.raises(AdviseError, match="--block-size must be at least 1"):
        capacity(CARD, token(512 * 1024), 0)


@pytest.mark.parametrize(("heads", "gpus", "parts"), [(32, 2, 2), (8, 8, 8), (8, 16, 8), (0, 4, 1)])
def test_several_gpus(heads, gpus, parts):
    """GPUs divide weights and KV heads among them; of what cannot be divided each has a copy."""
    memory = Memory(48 * GIB, 0.60, 13.5 * GIB, 2 * GIB, gpus)
    found = capacity(memory, token(512 * 1024, heads), 16)
    room = (48 * 0.6 - 13.5 / gpus - 2) * GIB

    assert found.room.value == pytest.approx(room)
    assert found.blocks.value == int(room / (512 * 1024 / parts) / 16)
    assert (f"/ {parts} GPUs)" in found.tokens.source) is (parts > 1)


def test_requests_that_fit():
    """What fits is whole requests; where a part is not known neither is it, and the reason is passed on."""
    ten, unknown = Figure(10, "tokens", "given"), Figure(None, "tokens", "no answer ended")

    assert fits(Figure(199, "tokens", "given"), ten, ten).value == 9
    assert (fits(ten, ten, unknown).value, fits(ten, ten, unknown).source) == (None, "no answer ended")
    assert fits(ten, Figure(0, "", ""), Figure(0, "", "")).value is None
