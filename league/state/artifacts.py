"""Additions that matches made to an arena's stores, in the order of the history."""

from math import isfinite

import msgspec

from league.fold_primitives import SeenIds, SeenIdsSnapshot
from schemas.codec import canonical_json
from schemas.episodes import Artifact, ArtifactAdded
from schemas.events import ArtifactStored

MAX_ARTIFACT_BYTES = 60_000
"""Largest content of an artifact, in bytes of JSON."""
MAX_STORE_BYTES = 1 << 22
"""Largest content of one store, in bytes of JSON: every worker and every snapshot holds it."""
MAX_STORES = 16


class ArtifactsSnapshot(msgspec.Struct, frozen=True):
    """The stores in a snapshot."""

    stores: dict[str, list[Artifact]] = {}
    seen: SeenIdsSnapshot = SeenIdsSnapshot({}, [])
    refused: int = 0


class ArtifactFeed:
    """Additions since the last ``drain``, for a store that follows the fold: same content, same order."""

    def __init__(self, artifacts: list[ArtifactAdded]) -> None:
        self._new = {(added.store, added.artifact.id): added for added in artifacts}

    def add(self, added: ArtifactAdded) -> None:
        """Append an addition; a pending one with the same id is replaced, so the feed is bounded as the stores are."""
        self._new[added.store, added.artifact.id] = added

    def drain(self) -> list[ArtifactAdded]:
        """Take every pending artifact in its newest form, in the order of first addition; at first all of them."""
        artifacts, self._new = list(self._new.values()), {}
        return artifacts


class ArenaArtifacts:
    """Stores by name, each with its artifacts in the order of first addition.

    An artifact replaces an earlier one with the same id, as in ``ArtifactStore``. Additions that exceed the limits
    above or have no usable weight are counted and left out by every fold alike, so that all workers draw from the same
    stores. An addition stays when its match is voided, as all earlier decisions do.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._stores: dict[str, dict[str, Artifact]] = {}
        self._bytes: dict[str, int] = {}
        self._seen = SeenIds()
        self._watches: list[ArtifactFeed] = []

    def add(self, event: ArtifactStored) -> bool:
        """Fold an addition; returns whether it is in its store now: False for a duplicate or one left out."""
        # The match id last: it then takes one bit per number (see ``SeenIds``).
        if not self._seen.add(f"{event.number}:{event.match_id}"):
            return False
        artifact = Artifact(event.data, event.artifact, event.weight)
        before = self._stores.get(event.store, {}).get(event.artifact)
        size = size_of(artifact)
        total = self._bytes.get(event.store, 0) + size - (0 if before is None else size_of(before))
        is_usable = isfinite(event.weight) and event.weight >= 0 and size <= MAX_ARTIFACT_BYTES
        has_room = event.store in self._stores or len(self._stores) < MAX_STORES
        if not (is_usable and has_room and total <= MAX_STORE_BYTES):
            self.refused += 1
            return False
        self._bytes[event.store] = total
        self._stores.setdefault(event.store, {})[artifact.id] = artifact
        for watch in self._watches:
            watch.add(ArtifactAdded(event.store, artifact))
        return True

    def subscribe(self) -> ArtifactFeed:
        """A feed of present and future additions; it is not part of the state."""
        watch = ArtifactFeed(self.additions())
        self._watches.append(watch)
        return watch

    def additions(self, store: str | None = None) -> list[ArtifactAdded]:
        """Additions to one store, or to all, for ``ArtifactStore.replay``; ordered by first addition."""
        names = self._stores if store is None else [store] if store in self._stores else []
        return [ArtifactAdded(name, artifact) for name in names for artifact in self._stores[name].values()]

    def to_snapshot(self) -> ArtifactsSnapshot:
        """The stores as a snapshot."""
        stores = {name: list(store.values()) for name, store in self._stores.items()}
        return ArtifactsSnapshot(stores, self._seen.to_snapshot(), self.refused)

    @classmethod
    def from_snapshot(cls, saved: ArtifactsSnapshot) -> "ArenaArtifacts":
        """Restore the stores from a snapshot."""
        artifacts = cls()
        for name, store in saved.stores.items():
            artifacts._stores[name] = {artifact.id: artifact for artifact in store}
            artifacts._bytes[name] = sum(map(size_of, store))
        artifacts._seen = SeenIds.from_snapshot(saved.seen)
        artifacts.refused = saved.refused
        return artifacts


def size_of(artifact: Artifact) -> int:
    """Size of an artifact as counted against the limits, in bytes."""
    return len(artifact.id.encode()) + len(canonical_json(artifact.data))
