"""Files that a user names: small, regular, and understood to the last key."""

import os

import pytest

from kvpressure import files, yamlfile
from kvpressure.settings import ConfigError


def test_a_small_file(tmp_path):
    """All of a regular file is read."""
    (tmp_path / "token").write_bytes(b"secret\n")

    assert files.read(str(tmp_path / "token")) == b"secret\n"


def test_a_pipe_holds_nobody_up(tmp_path):
    """A FIFO is refused at once instead of being waited for."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(OSError, match="is not a regular file"):
        files.read(str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("path", "why"),
    [("/dev/zero", "is not a regular file"), ("/", "Is a directory"), ("a\0b", "cannot be that of a file")],
)
def test_what_is_no_file(path, why):
    """A device, a folder and an impossible name are refused with the reason."""
    with pytest.raises(OSError, match=why):
        files.read(path)


def test_a_large_file_is_not_read_whole(tmp_path):
    """A file over the limit is refused."""
    (tmp_path / "large").write_bytes(bytes(files.LARGEST + 1))

    with pytest.raises(OSError, match="is larger than 1024 KiB"):
        files.read(str(tmp_path / "large"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "is not YAML in line 3: the key 'a' stands here a second time"),
        ("a:\n  b: 1\n  b: 1\n", "is not YAML in line 3: the key 'b' stands here a second time"),
        ("[" * 20_000, "is not YAML: cannot be parsed"),
        ("a: 2026-13-45", "is not YAML: cannot be parsed"),
        *[(f"a: {odd}", "is not YAML: cannot be parsed") for odd in ("!!bool x", '!!int ""', "!!timestamp x")],
        ("? [a]\n: 1\n", "is not YAML: cannot be parsed"),
        ("- a", "must be a mapping, not 'list'"),
    ],
)
def test_yaml_that_would_be_guessed_at(tmp_path, text, sentence):
    """A key that stands twice, a document too deep and a value that is none are each one sentence."""
    path = tmp_path / "c.yml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError) as fault:
        yamlfile.read(str(path))
    assert str(fault.value) == f"{path}: {sentence}"


def test_yaml_merge_keys(tmp_path):
    """A merge key is no key twice, and an own key wins over a merged one."""
    path = tmp_path / "c.yml"
    path.write_text("base: &base {x: 1, y: 2}\nown:\n  <<: *base\n  x: 3\n", encoding="utf-8")

    assert yamlfile.read(str(path))["own"] == {"x": 3, "y": 2}
