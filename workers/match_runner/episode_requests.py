"""The order of a worker's episodes, and the names of the groups in which their trajectories are compared.

An arena returns the episodes of a step (``Arena.get_batch``); a league plays them one by one, then requests the next
batch. Group names are the league's, since one trainer reads many workers' trajectories: ``<worker>-<since>-<n>``.

With ``episodes.spread`` = k, k workers share the groups, each playing a k-th of every group: workers 1 to k of their
kind, k + 1 to 2 k, and so on. They draw from the same seed, so the number of a match alone determines its group and
its place there, also after a restart.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from arena.arena import Arena
from arena.model_call import current_episode
from league.log.base import MAX_BATCH
from league.state.artifacts import MAX_ARTIFACT_BYTES, size_of
from schemas.episodes import Artifact, ArtifactAdded, EpisodeRequest
from schemas.errors import ConfigError, EpisodeError, UsageError
from schemas.events import ArtifactStored
from schemas.loggers import get_logger
from workers.runtime import Context

log = get_logger()


class GroupShare(NamedTuple):
    """A worker's share of the drawn episodes: those whose place in their group, modulo ``of``, is ``part``."""

    part: int = 0
    of: int = 1
    block: int = 0
    """Workers of different blocks draw different episodes."""


def resolve_group_share(worker: str, spread: int) -> GroupShare:
    """A worker's share, from the number at the end of its name; ``ConfigError`` if it needs one and has none."""
    if spread == 1:
        return GroupShare()
    number = worker.rpartition("-")[2]
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ConfigError(f"episodes.spread: {spread}, but the worker's name is {worker!r}; expected <name>-<number>")
    block, part = divmod(int(number) - 1, spread)
    return GroupShare(part, spread, block)


class EpisodeRequestStream:
    """An endless stream of a worker's episode requests; ``draw`` is the arena's ``get_batch``."""

    def __init__(
        self,
        draw: Callable[[], Sequence[EpisodeRequest]],
        prefix: str,
        share: GroupShare = GroupShare(),  # noqa: B008
    ) -> None:
        self._draw = draw
        self._prefix = prefix
        self._share = share
        self._waiting: deque[EpisodeRequest] = deque()
        self._groups = itertools.count()
        self._ungrouped = itertools.count()

    def skip(self, number: int) -> None:
        """Skip requests that were played before a restart; errors as in ``next``."""
        for _ in range(number):
            self.next()

    def next(self) -> EpisodeRequest:
        """The next request, with the league's name for its group; ``EpisodeError`` if the arena returns none."""
        tries = 0
        while not self._waiting:
            batch = self._draw()
            # A share of small groups may be empty in one draw, but not in as many draws as there are shares.
            tries += 1
            self._take_share(batch)
            if not batch or (not self._waiting and tries > self._share.of):
                raise EpisodeError("the arena's get_batch: nothing to play; expected at least one episode")
        return self._waiting.popleft()

    def _take_share(self, batch: Sequence[EpisodeRequest]) -> None:
        names: dict[str, str] = {}
        group_sizes: Counter[str] = Counter()
        for request in batch:
            # Its place in its group, or among all ungrouped requests.
            if not request.group:
                index = next(self._ungrouped)
            else:
                if request.group not in names:
                    names[request.group] = f"{self._prefix}-{next(self._groups)}"
                index = group_sizes[request.group]
                group_sizes[request.group] += 1
            if index % self._share.of == self._share.part:
                self._waiting.append(msgspec.structs.replace(request, group=names.get(request.group, "")))


class Curriculum:
    """The stores of one arena according to the history: their initial contents, then all additions in order.

    An addition is an event of the match in which it was made, appended when the match has a result; failed matches add
    nothing. Every store, also that of the process that made the addition, receives it through the history, so that
    processes at the same sequence draw from the same contents, however often they were restarted.

    Workers that share groups (``episodes.spread``) must draw the same at any sequence: their stores stay as they were
    opened, and adding to one is an error.
    """

    def __init__(self, context: Context, arena: Arena, sharing: int = 1) -> None:
        """Own the stores of a newly opened arena; so many workers are ``sharing`` groups."""
        self._worker = context.name
        self._artifacts = context.state.artifacts
        self._stores = list(arena.stores.values())
        self._sharing = sharing
        self._watch = self._artifacts.subscribe() if sharing == 1 else None
        self._pending_additions: dict[str, list[ArtifactStored]] = {}
        self._has_warned = False
        for store in self._stores:
            store.hand_over(self._on_added)

    def catch_up(self) -> None:
        """Apply recorded additions to the stores, as far as this process has folded the history."""
        if self._watch is None:
            return
        additions = self._watch.drain()
        for store in self._stores:
            store.replay(additions)
        if self._artifacts.refused and not self._has_warned:
            self._has_warned = True
            log.warning("additions are left out, stores are full", left_out=self._artifacts.refused)

    @contextmanager
    def collect_additions(self, match_id: str) -> Iterator[list[ArtifactStored]]:
        """Collect a match's additions in order, during the block; to be appended if the match has a result."""
        additions: list[ArtifactStored] = []
        self._pending_additions[match_id] = additions
        try:
            yield additions
        finally:
            del self._pending_additions[match_id]

    def _on_added(self, added: ArtifactAdded) -> None:
        match_id = ""
        if (running := current_episode()) is not None:
            # The top-level episode has the match's id.
            match_id = running.context.id.rsplit(".", running.context.depth)[0]
        additions = self._pending_additions.get(match_id)
        if additions is None:
            raise UsageError(f"store {added.store!r}: an addition outside of a match; expected them within episodes")
        if self._sharing > 1:
            raise UsageError(
                f"store {added.store!r}: an addition where {self._sharing} workers share groups and all draw the same; "
                "expected stores that stay as they are, or episodes.spread = 1"
            )
        if len(additions) + 1 >= MAX_BATCH:
            raise UsageError(
                f"store {added.store!r}: addition {len(additions) + 1} of match {match_id}; expected fewer than "
                f"{MAX_BATCH:,}, which are recorded together with its result"
            )
        # Through JSON: equal to the recorded artifact, and independent of the original.
        artifact = msgspec.json.decode(msgspec.json.encode(added.artifact), type=Artifact)
        if (size := size_of(artifact)) > MAX_ARTIFACT_BYTES:
            raise UsageError(
                f"store {added.store!r}: an artifact of {size} bytes; expected {MAX_ARTIFACT_BYTES} at most"
            )
        additions.append(
            ArtifactStored(
                store=added.store,
                artifact=artifact.id,
                data=artifact.data,
                weight=artifact.weight,
                match_id=match_id,
                number=len(additions),
                worker=self._worker,
            )
        )
