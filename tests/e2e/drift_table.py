"""What kvpressure's table says of a version, and how what was found agrees with it."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvpressure.vllm import exposed, names
from kvpressure.vllm.names import Alias, Family

from .drift_found import Families, Found
from .drift_source import TOKENS

Version = tuple[int, ...]

READ = (*names.FAMILIES, *names.DRAWN, *names.ADVISED)
"""The families that kvpressure reads, its dashboards draw, or its advice asks Prometheus for."""

CACHE_LABELS = (
    "kv_cache_size_tokens",
    "num_gpu_blocks",
    "block_size",
    "num_cpu_blocks",
    "cache_dtype",
    "enable_prefix_caching",
)
"""The labels of cache_config_info that are read; the first says what the next two say together."""

OPTIONAL = {
    names.OFFLOAD_LOADED_BYTES.field: "only with an offloading connector",
    names.OFFLOAD_STORED_BYTES.field: "only with an offloading connector",
    names.OFFLOAD_LOAD_SECONDS.field: "only with an offloading connector",
    names.OFFLOAD_STORE_SECONDS.field: "only with an offloading connector",
}
"""Families that a server exposes only where it is configured so; its source always has them."""

PAUSE_EDGE = 1.0
"""Seconds. The edge of the gaps' histogram that counts pauses; without it the next lower one is taken."""

_HIDING = "show_hidden_metrics"  # vLLM's condition for what a user must ask for
_ALIKE = 0.7  # difflib's ratio from which two names are offered as one
_CLAIM = re.compile(
    r"(?:(?P<engine>V0|V1) )?(?:(?P<hidden>hidden|deprecated) )?(?:to (?P<to>[0-9.]+)|(?P<since>[0-9.]+)\+|"
    r"(?P<first>[0-9.]+) to (?P<last>[0-9.]+)|(?P<all>all)|seen in (?P<seen>[0-9.]+)|(?P<at>[0-9.]+))"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """
    One clause of an alias's versions.

    Args:
        engine: the engine that it speaks of; empty for both.
        first: the first release; empty for the first of all.
        last: the last release; empty where it is still there.
        hidden: only with ``--show-hidden-metrics-for-version``.
    """

    engine: str = ""
    first: Version = ()
    last: Version = ()
    hidden: bool = False

    def covers(self, version: Version, engine: str) -> bool:
        """Whether it speaks of a release of an engine."""
        return self.engine in ("", engine) and self.first <= version and (not self.last or version <= self.last)


def version(text: str) -> Version:
    """The numbers of a release: "0.18.1+cpu" gives (0, 18, 1), and 0.6.3.post1 counts as 0.6.3."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    if found is None:
        raise ValueError(f"{text!r} is no version of vLLM; write it as 0.32.0")
    numbers = tuple(int(number) for number in found[0].split("."))
    return numbers + (0,) * (3 - len(numbers))


def claims(alias: Alias) -> list[Claim]:
    """
    What an alias's ``versions`` say.

    Raises:
        ValueError: a clause is not understood; the message names it.
    """
    read: list[Claim] = []
    engine = ""
    last: Version = ()
    for clause in alias.versions.partition(";")[0].split(", "):
        found = _CLAIM.fullmatch(clause)
        if found is None:
            raise ValueError(f"{alias.name}: {clause!r} is no clause that drift.py understands")
        # "V0 to 0.8.2, hidden to 0.9.0.1": what is hidden goes on where the clause before it ended.
        engine = found["engine"] or ("" if not found["hidden"] else engine)
        if found["hidden"] == "deprecated":
            continue
        since = found["since"] or found["first"] or found["seen"] or ""
        until = found["to"] or found["last"] or ""
        claim = Claim(
            engine,
            version(since) if since else (last if found["hidden"] else ()),
            version(until) if until else (),
            hidden=found["hidden"] == "hidden",
        )
        read.append(claim)
        last = claim.last
    return read


@dataclass(frozen=True, slots=True)
class Row:
    """
    How one family stands.

    Args:
        family: which.
        found: the spelling that was found; empty for none.
        says: in words.
        broken: something that kvpressure reads of it is gone or renamed.
    """

    family: Family
    found: str
    says: str
    broken: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """One engine of one release, and where it was read."""

    found: Families
    engine: str
    release: Version | None
    source: bool

    @property
    def told_of(self) -> str:
        """The engine of the table's claims: Ray's families and the Rust front end's are V1's."""
        return "V0" if self.engine == "V0" else "V1"


def compare(found: Families, engine: str, release: Version | None, *, source: bool) -> list[Row]:
    """
    How each family that kvpressure reads, or its dashboards draw, stands.

    Args:
        found: what there is.
        engine: whose families these are: V0, V1, Ray or Rust.
        release: its version; None where it is not known: then the newest spellings are expected.
        source: it was read in a source, which has what a server exposes only under some configuration.
    """
    case = _Case(found, engine, release, source)
    return [_row(family, case) for family in READ]


def _row(family: Family, case: _Case) -> Row:
    there = [alias for alias in family.aliases if alias.name in case.found]
    wanted = _wanted(family, case)
    if not there:
        return _absent(family, wanted, case)
    alias, one = there[0], case.found[there[0].name]
    faults = _faults(family, alias, one)
    notes = [one.note] if one.note else []
    if _HIDING in one.note and alias in wanted:
        faults.append(f"GONE: hidden, where the table says {alias.versions}")
    if wanted and not any(expected in there for expected in wanted):
        faults.insert(0, f"RENAMED: the table expects {wanted[0].name} ({wanted[0].versions}), and knows this name too")
    elif case.release is not None and alias not in wanted and not _hidden(alias, case):
        notes.append(f"more than the table says ({alias.versions})")
    elif alias is not family.aliases[0]:
        notes.append(f"an older name, as the table says ({alias.versions})")
    if not faults and not notes:
        notes.append("as the table says")
    if family.kind == "histogram" and one.edges is not None:
        notes.append(_edges(family, one.edges, faults))
    return Row(family, alias.name, "; ".join((*faults, *notes)), bool(faults))


def _wanted(family: Family, case: _Case) -> list[Alias]:
    """The spellings that must be there, the one to prefer first."""
    if case.release is None:
        return [] if all(claim.last for claim in claims(family.aliases[0])) else [family.aliases[0]]
    return [
        alias
        for alias in family.aliases
        if any(claim.covers(case.release, case.told_of) and not claim.hidden for claim in claims(alias))
    ]


def _hidden(alias: Alias, case: _Case) -> bool:
    release = case.release or ()
    return any(claim.hidden and claim.covers(release, case.told_of) for claim in claims(alias))


def _absent(family: Family, wanted: Sequence[Alias], case: _Case) -> Row:
    if not wanted:
        return Row(
            family, "", f"not there, as the table says ({'; '.join(alias.versions for alias in family.aliases)})"
        )
    if not case.source and family.field in OPTIONAL:
        return Row(family, "", f"not there: {OPTIONAL[family.field]}")
    if not case.source and (case.engine in ("Ray", "Rust") or (case.engine == "V0" and family is names.FINISHED)):
        return Row(family, "", f"not there: {case.engine} makes a family with its first value, if at all")
    alike = difflib.get_close_matches(wanted[0].name, _strangers(family, case), n=2, cutoff=_ALIKE)
    perhaps = f"; perhaps {' or '.join(alike)} is what it is called now" if alike else ""
    return Row(family, "", f"GONE: the table expects {wanted[0].name} ({wanted[0].versions}){perhaps}", broken=True)


def _strangers(family: Family, case: _Case) -> list[str]:
    """Names that are in no table, of families that could be this one."""
    known = {alias.name for one in READ for alias in one.aliases}
    known |= {one.name for one in exposed.EXPOSED}
    kinds = ("", "gauge" if family.kind == "info" else family.kind)
    return [name for name, one in case.found.items() if name not in known and one.kind in kinds]


def _faults(family: Family, alias: Alias, one: Found) -> list[str]:
    """What has changed of a family that is there."""
    faults = []
    kinds = (family.kind, "gauge") if family.kind == "info" else (family.kind,)
    if one.kind and one.kind not in kinds:
        faults.append(f"CHANGED: it is a {one.kind}, and is read as a {family.kind}")
    if not one.labels:
        return faults
    wanted = {label for label, _ in alias.where} | ({family.split} if family.split else set())
    if family is names.CACHE_CONFIG:
        missing = set(CACHE_LABELS) - one.labels
        if {"num_gpu_blocks", "block_size"} & missing and CACHE_LABELS[0] in missing:
            faults.append(f"GONE: the labels that state the cache's size ({', '.join(sorted(missing))})")
    elif one.whole:
        wanted.add(names.MODEL_LABEL)
    if one.whole and (missing := wanted - one.labels):
        faults.append(f"GONE: label {', '.join(sorted(missing))}")
    for label, value in alias.where:
        if one.values.get(label) and value not in one.values[label]:
            faults.append(f"GONE: {label}={value!r}; there is {', '.join(sorted(one.values[label]))}")
    return faults


def _edges(family: Family, edges: tuple[float, ...], faults: list[str]) -> str:
    if family is names.GAPS and PAUSE_EDGE not in edges:
        faults.append(f"GONE: the edge at {PAUSE_EDGE:g} s, which counts pauses")
    if edges == TOKENS:
        return "edges 1, 2, 5, 10, ... tokens"
    return f"{len(edges)} edges, {edges[0]:g} to {edges[-1]:g}" if edges else "no edges"
