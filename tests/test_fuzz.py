# small helpers, named for what they do
"""The fuzzer finds what is wrong, tells how to repeat it, and makes the same inputs from the same seed."""

from fuzz import __main__ as runner
from fuzz import logs
from fuzz.mutate import Mutator


def test_all_targets_take_their_corpus():
    """Every target stands in the list, and none of what it begins with fails."""
    found = runner.targets()

    assert "logs.reader" in map(str, found)
    for target in found:
        for data in target.corpus:
            target.run(data)
    assert len(logs.CORPUS) > 5


def test_a_failure_is_told(monkeypatch, capsys, tmp_path):
    """An input that fails is printed and kept, with the seed and the command that repeat it, and the status is 1."""

    def fails(data):
        if b"7" in data:
            raise ValueError

    monkeypatch.setattr(runner, "FAILED", tmp_path)
    monkeypatch.setattr(runner, "targets", lambda: [runner.Target("planted", "one", fails, [b"1", b"2", b"07"])])
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda _: None)
    assert runner.main(["5", "--seed", "3"]) == 1
    told = capsys.readouterr().out
    assert "planted.one: 3 inputs" in told
    assert "seed 3" in told
    assert "b'07'" in told
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == b"07"
    assert f"--input {kept} 0 planted.one" in told


def test_inputs_are_repeatable():
    """The same seed makes the same inputs, another one others."""
    first, again, other = (Mutator(logs.CORPUS, seed) for seed in (1, 1, 2))
    inputs = [first.next() for _ in range(200)]

    assert inputs == [again.next() for _ in range(200)]
    assert inputs != [other.next() for _ in range(200)]
    assert len(set(inputs)) > 150
