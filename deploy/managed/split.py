"""
Print a file of rules with its groups cut into smaller ones, for rulers that limit the rules of a group.

    python3 split.py FILE [MOST]

Mimir takes 20 rules a group by default (MOST). The order stays, and no rule is changed but for the layout of its YAML.
Rules of one group that read each other would have to stay together: those of kvpressure do not, as a test holds.
"""
# ruff: noqa: INP001  # a program beside manifests, no package

import sys
from pathlib import Path

import yaml


def main() -> None:
    """Read the file that the command line names, print it cut up."""
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 20  # noqa: PLR2004
    document = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    groups = []
    for group in document["groups"]:
        rules = group["rules"]
        parts = [rules[start : start + most] for start in range(0, len(rules), most)]
        for number, part in enumerate(parts, 1):
            name = group["name"] if len(parts) == 1 else f"{group['name']}.{number}"
            groups.append(group | {"name": name, "rules": part})
    yaml.safe_dump({"groups": groups}, sys.stdout, sort_keys=False, width=1000)


if __name__ == "__main__":
    main()
