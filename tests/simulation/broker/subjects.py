"""Subjects and their wildcards."""

from functools import lru_cache


def has_wildcard(subject: str) -> bool:
    """Whether a subject is a pattern."""
    return "*" in subject or ">" in subject


def last_token(subject: str) -> str:
    """The part after the last dot."""
    return subject[subject.rfind(".") + 1 :]


@lru_cache(maxsize=65_536)
def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern: ``*`` is one token, ``>`` at the end one or more."""
    if pattern in (">", subject):
        return True
    wanted, found = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(found) > place
        if place >= len(found) or token not in ("*", found[place]):
            return False
    return len(wanted) == len(found)
