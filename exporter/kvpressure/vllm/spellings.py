"""Which sample name, in which way of writing it, leads to which family. Built once from ``names.FAMILIES``."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvpressure.vllm import names


@dataclass(frozen=True, slots=True)
class Spelling:
    """
    Where a sample name leads.

    Args:
        family: what it is.
        alias: the spelling that matched.
        rank: how much this alias is preferred; 0 is best.
        part: value, or a histogram's bucket, sum or count.
    """

    family: names.Family
    alias: names.Alias
    rank: int
    part: str = "value"

    def fits(self, labels: dict[str, str]) -> bool:
        """Whether a series with these labels is meant, where the name alone does not tell."""
        return all(labels.get(key) == value for key, value in self.alias.where)


def spellings(families: Iterable[names.Family]) -> dict[str, list[Spelling]]:
    """Sample name as written -> what of these families it can mean."""
    table: dict[str, list[Spelling]] = {}

    def add(name: str, spelling: Spelling) -> None:
        # Ray puts its prefix before the name; Ray and OpenMetrics escaping turn the colon into an underscore.
        for written in (name, name.replace(":", "_")):
            table.setdefault(written, []).append(spelling)
            table.setdefault(names.RAY_PREFIX + written, []).append(spelling)

    for family in families:
        for rank, alias in enumerate(family.aliases):
            base = names.PREFIX + alias.name
            if family.kind == "histogram":
                for part in ("bucket", "sum", "count"):
                    add(f"{base}_{part}", Spelling(family, alias, rank, part))
            else:
                add(base, Spelling(family, alias, rank))
                if family.kind == "counter":
                    # Whether Ray's client adds _total depends on its version: take both.
                    add(base + "_total", Spelling(family, alias, rank))
    return table


SPELLINGS = spellings(names.FAMILIES)
"""Sample name as written -> what of all that the sampler reads it can mean."""
