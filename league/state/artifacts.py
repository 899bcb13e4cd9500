"""What arenas' stores hold beside what they began with: additions from within matches, in the order of the history."""

from math import isfinite

import msgspec

from league.seen import SavedSeen, Seen
from schemas.codec import canonical
from schemas.episodes import Artifact, ArtifactAdded
from schemas.events import ArtifactStored

MOST_BYTES = 1 << 16
"""Largest content of an artifact, in bytes of JSON."""
MOST_IN_STORE = 1 << 22
"""Largest content of one store, in bytes of JSON: every worker holds it, and every snapshot."""
MOST_STORES = 16


class SavedArtifacts(msgspec.Struct, frozen=True):
    """Stores for a snapshot."""

    stores: dict[str, list[Artifact]] = {}
    seen: SavedSeen = SavedSeen({}, [])
    refused: int = 0


class Artifacts:
    """Stores by name, each with its artifacts in the order in which they first came.

    An artifact with the id of an earlier one takes its place, as in ``ArtifactStore``. What does not fit the limits
    above, or has no usable weight, is counted and left out, by every fold alike: all workers draw from the same.
    An addition stays when its match is voided, as all decisions that were made before do.
    """

    def __init__(self) -> None:
        self.refused = 0
        """Additions that were left out."""
        self._stores: dict[str, dict[str, Artifact]] = {}
        self._bytes: dict[str, int] = {}
        self._seen = Seen()

    def store(self, event: ArtifactStored) -> bool:
        """Take up an addition.

        Returns:
            Whether it is in its store now; False for one that was met before, or left out.
        """
        # The match last: a match id then takes one bit for each number (see ``Seen``).
        if not self._seen.add(f"{event.number}:{event.match_id}"):
            return False
        if not self._fits(event):
            self.refused += 1
            return False
        self._put(event.store, Artifact(event.data, event.artifact, event.weight))
        return True

    def additions(self, store: str | None = None) -> list[ArtifactAdded]:
        """What to give to ``ArtifactStore.replay``: of one store, or of all in the order of their first additions."""
        names = self._stores if store is None else [store] if store in self._stores else []
        return [ArtifactAdded(name, artifact) for name in names for artifact in self._stores[name].values()]

    def saved(self) -> SavedArtifacts:
        """Everything, for a snapshot."""
        stores = {name: list(held.values()) for name, held in self._stores.items()}
        return SavedArtifacts(stores, self._seen.saved(), self.refused)

    @classmethod
    def restored(cls, saved: SavedArtifacts) -> "Artifacts":
        """What was saved; it goes on like the one that folded all events."""
        artifacts = cls()
        for name, held in saved.stores.items():
            for artifact in held:
                artifacts._put(name, artifact)
        artifacts._seen, artifacts.refused = Seen.restored(saved.seen), saved.refused
        return artifacts

    def _fits(self, event: ArtifactStored) -> bool:
        if not (isfinite(event.weight) and event.weight >= 0):
            return False
        if event.store not in self._stores and len(self._stores) >= MOST_STORES:
            return False
        size = _size(event.artifact, event.data)
        before = self._stores.get(event.store, {}).get(event.artifact)
        freed = 0 if before is None else _size(before.id, before.data)
        return size <= MOST_BYTES and self._bytes.get(event.store, 0) - freed + size <= MOST_IN_STORE

    def _put(self, store: str, artifact: Artifact) -> None:
        held = self._stores.setdefault(store, {})
        before = held.get(artifact.id)
        freed = 0 if before is None else _size(before.id, before.data)
        self._bytes[store] = self._bytes.get(store, 0) - freed + _size(artifact.id, artifact.data)
        held[artifact.id] = artifact


def _size(name: str, data: object) -> int:
    return len(name.encode()) + len(canonical(data))
