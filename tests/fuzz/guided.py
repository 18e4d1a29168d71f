"""One target under atheris, in a process of its own: libFuzzer ends the process it runs in."""

import importlib
import sys

import atheris


def main(arguments: list[str]) -> None:
    """
    Fuzz until the time is up or an input fails.

    Args:
        arguments: module, target, and what libFuzzer is to be told.
    """
    module, target, *options = arguments
    with atheris.instrument_imports(include=["kvpressure.vllm"]):
        found = importlib.import_module(f"{__package__}.{module}")
    atheris.Setup([sys.argv[0], *options], found.TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
