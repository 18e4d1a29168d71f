"""``kvpressure advise`` as it is typed."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from kvpressure import cli

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "workload.yml"
LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def test_a_described_workload_is_advised_on_in_three_forms(tmp_path, capsys):
    """The example of the documentation: text on the terminal, a page, and JSON that keeps to the schema."""
    page, data = tmp_path / "advice.html", tmp_path / "advice.json"
    words = ["advise", "--workload", str(EXAMPLE), "--seeds", "2", "--html", str(page), "--json", str(data)]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    found = json.loads(data.read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "docs" / "advise.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    assert "--max-num-seqs" in said
    assert "<svg" in page.read_text(encoding="utf-8")


def test_json_alone_is_for_programs(capsys):
    """``--json -`` prints JSON and nothing else."""
    assert cli.main(["advise", "--workload", str(EXAMPLE), "--seeds", "1", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["advice"]["changes"]


def test_a_capacity_by_arithmetic_replaces_the_server_s(tmp_path, capsys):
    """48 GB at 0.60 with 13.5 GB of weights and 2 GB beside: 13.3 GB for a model with 128 KiB per token."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    words = ["--gpu-memory", "48GB", "--utilization", "0.6", "--weights", "13.5GB", "--overhead", "2GB"]
    status = cli.main(
        ["advise", "--workload", str(EXAMPLE), "--seeds", "1", "--json", "-", "--model-config", str(config), *words]
    )
    assert status == 0
    have = {line["name"]: line["figure"] for line in json.loads(capsys.readouterr().out)["advice"]["have"]}
    assert have["KV capacity"]["value"] == pytest.approx(13.3 * 1024**3 / (128 * 1024), rel=0.01)
    assert "13.3 GiB" in have["KV capacity"]["source"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--recording", "/nowhere"], "there is no such file or folder"),
        (["--workload", "/nowhere"], "/nowhere"),
        (["--workload", str(EXAMPLE), "--gpu-memory", "48"], "--model-config"),
        (["--workload", str(EXAMPLE), "--target-ttft", "soon"], "'soon' is not a duration"),
        (["--workload", str(EXAMPLE), "--target-per-thousand", "0"], "--target-per-thousand must be over 0"),
        (["--workload", str(EXAMPLE), "--seeds", "1000"], "--seeds 1000 is more than 100"),
        (["--prometheus", "http://127.0.0.1:9", "--range", "0"], "--range"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, capsys):
    """It names the flag or the file, and nothing is simulated."""
    assert cli.main(["advise", *words]) == cli.USAGE
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_one_source_must_be_given(capsys):
    """Neither none nor two."""
    for words in ([], ["--prometheus", "http://x", "--recording", "y"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["advise", *words])
        assert ended.value.code == cli.USAGE
        assert "--prometheus" in capsys.readouterr().err


def test_flags_in_the_documentation_exist(capsys):
    """Every flag that docs/advise.md names is one of the command, or of vLLM."""
    with pytest.raises(SystemExit):
        cli.main(["advise", "--help"])
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")))
    of_vllm = {"--kv-cache-dtype"}
    assert named - known - of_vllm == set()
