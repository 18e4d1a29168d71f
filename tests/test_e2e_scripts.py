"""The scripts that install and serve a real vLLM, as far as they go without one."""

import subprocess
from pathlib import Path

import pytest

E2E = Path(__file__).parent / "e2e"


def run(script, *words):
    return subprocess.run([E2E / script, *words], check=False, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("words", [(), ("0.32.0",), ("latest", "folder"), ("0.32", "folder"), ("0.32.0", "a", "b")])
def test_setup_wants_a_version_and_a_folder(tmp_path, words):
    """Anything else is refused before anything is made."""
    said = run("setup.sh", *(tmp_path / word if word == "folder" else word for word in words))

    assert 2 == said.returncode
    assert "usage: setup.sh VERSION DIR" in said.stderr
    assert [] == list(tmp_path.iterdir())


def test_setup_leaves_what_is_ready(tmp_path):
    """A folder of the same version is left as it is, so that it can be cached."""
    (tmp_path / ".ready").write_text("0.32.0\n", encoding="ascii")
    (tmp_path / "venv").mkdir()
    said = run("setup.sh", "0.32.0", tmp_path)

    assert (0, "") == (said.returncode, said.stderr)
    assert {".ready", "venv"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("words", [(), ("8100", "40", "1024"), ("8100", "40", "1024", "many"), ("x", "1", "1", "1")])
def test_serve_wants_numbers(tmp_path, words):
    """What is no number is refused before vLLM is asked."""
    said = run("serve.sh", tmp_path, *words)

    assert 2 == said.returncode
    assert "usage: serve.sh DIR PORT BLOCKS" in said.stderr


def test_serve_says_what_to_do_first(tmp_path):
    """Without an installation the sentence names the script that makes one."""
    said = run("serve.sh", tmp_path, "8100", "40", "1024", "64")

    assert 2 == said.returncode
    assert f"there is no vLLM in {tmp_path}: run setup.sh VERSION {tmp_path} first" in said.stderr
