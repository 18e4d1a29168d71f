"""Which engine is meant, where a source knows several, and what it does not know of it."""

from collections.abc import Iterable, Mapping, Sequence

from kvpressure.advise.seen import AdviseError, Slot

_LISTED = 12

Key = tuple[str, str, str]
"""Model, engine, and where it runs; the last one is empty where it is the same for all."""


def choose(loads: Mapping[Key, tuple[float, float]], source: str, model: str, engine: str) -> tuple[Key, list[str]]:
    """
    The engine that is meant, else the one with the most preemptions, and what must be said of the choice.

    Args:
        loads: preemptions and requests finished of each engine there is, in the range.
        source: where they were seen, in words.
        model: the name that was asked for; empty for any.
        engine: the rank that was asked for; empty for any.

    Raises:
        AdviseError: there is no such engine; the message lists those that there are.
    """
    meant = [key for key in sorted(loads) if model in ("", key[0]) and engine in ("", key[1])]
    if not meant:
        wanted = f"engine {engine}" if engine else "engines"
        raise AdviseError(f"{source} knows no {wanted}{f' of model {model}' if model else ''}, but {listed(loads)}")
    best = max(meant, key=lambda key: loads[key])
    if len(meant) == 1:
        return best, []
    others = listed(key for key in meant if key != best)
    why = "had the most preemptions" if loads[best][0] else "finished the most requests, and none was preempted"
    return best, [f"{source} knows {len(meant)} engines. This is {named(best)}, which {why}. The others: {others}."]


def named(key: Key) -> str:
    """An engine in words."""
    model, engine, where = key
    text = f"engine {engine} of model {model or '(no name)'}{f' at {where}' if where else ''}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def listed(keys: Iterable[Key]) -> str:
    """Engines in words, the first dozen of them."""
    found = sorted(keys)
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(named(key) for key in found[:_LISTED]) + more


def missing(slots: Sequence[Slot], source: str) -> list[str]:
    """
    A sentence on what is known in no slot; none where everything is.

    Args:
        slots: of one engine.
        source: where it should have been, in words.
    """
    unknown = [words for name, words in _WORDS.items() if all(getattr(slot, name) in (None, "") for slot in slots)]
    return [f"Not known, because {source} did not tell: {', '.join(unknown)}."] if unknown else []


_WORDS = {
    "finished": "requests finished",
    "preemptions": "preemptions",
    "tokens": "tokens generated",
    "running": "requests running",
    "waiting": "requests waiting",
    "usage": "KV usage",
    "pinned": "time with the cache full",
    "blocked": "time blocked for KV",
    "paused": "requests paused, as their users see them",
    "prompts": "prompt lengths",
    "answers": "answer lengths",
    "gaps": "gaps between tokens",
    "first_tokens": "time to the first token",
    "regime": "regime",
    "verdict": "verdict",
}
