"""A canary's record of an adapter: what the learner answers to a few questions, for whoever serves the adapter later.

A question is a prompt with two allowed tokens, its answer the probability of the first one. A sampler gives it away by
the log-probability of whichever token it draws.
"""

from pathlib import Path

import msgspec

from schemas.codec import DECODE_ERRORS
from schemas.errors import ModelError
from schemas.ids import digest

RECORD_FILE = "canary.json"

_QUESTIONS, _PROMPT_TOKENS = 6, 4


class CanaryQuestion(msgspec.Struct, frozen=True):
    """A prompt of tokens from all over the vocabulary, and two allowed tokens, ascending."""

    prompt_ids: list[int]
    allowed: list[int]


class CanaryRecord(msgspec.Struct, frozen=True):
    """Questions, and the answers of a learner in float32 by the base model alone and with the adapter."""

    questions: list[CanaryQuestion]
    base: list[float]
    adapter: list[float]
    files: str = ""
    """Digest of the adapter's files, set by ``write_record``: a record of files that were changed since is void."""


def canary_prompts(vocabulary: int) -> list[list[int]]:
    """The canary's prompts for a vocabulary of so many tokens."""
    places = [vocabulary * (2 * index + 1) // (2 * _PROMPT_TOKENS) for index in range(_PROMPT_TOKENS)]
    return [[(place + number) % vocabulary for place in places] for number in range(_QUESTIONS)]


def canary_questions(vocabulary: int) -> list[CanaryQuestion]:
    """The canary's questions: after each of its prompts, a choice between that prompt's first and last token."""
    return [CanaryQuestion(ids, sorted((ids[0], ids[-1]))) for ids in canary_prompts(vocabulary)]


def write_record(record: CanaryRecord, folder: Path) -> None:
    """Write a record beside the files of its adapter."""
    record = msgspec.structs.replace(record, files=_digest_files(folder))
    (folder / RECORD_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(record)))


def read_record(folder: Path) -> CanaryRecord | None:
    """The record of an adapter in a folder; None for one that the league's learner did not write as it is.

    Raises:
        ModelError: it is damaged.
    """
    path = folder / RECORD_FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=CanaryRecord)
    except FileNotFoundError:
        return None
    except DECODE_ERRORS as error:
        raise ModelError(f"{path}: not a canary's record ({error}); expected the learner's file") from error
    return record if record.files == _digest_files(folder) else None


def _digest_files(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != RECORD_FILE)
    return digest(b"".join(path.read_bytes() for path in files))
