"""Stores of artifacts, the subjects of episodes. Additions go to a sink, so that a history can record them."""

from collections.abc import Callable, Iterable
from itertools import accumulate
from math import isfinite
from random import Random

import msgspec

from schemas.episodes import Artifact, ArtifactAdded
from schemas.errors import EpisodeError, UsageError
from schemas.ids import derive_seed, digest

Sink = Callable[[ArtifactAdded], None]
"""Receives every addition, in order, to record it for ``ArtifactStore.replay`` after a restart."""

_encode = msgspec.json.Encoder(order="sorted").encode


class ArtifactStore:
    """Artifacts by id, in the order of their first addition. Draws depend only on the seed and on earlier draws."""

    def __init__(self, name: str = "", seed: int = 0, sink: Sink | None = None) -> None:
        """An empty store; ``seed`` is that of its draws, and ``sink`` receives its additions."""
        self.name = name
        self._seed = seed
        self._sink = sink
        self._keeps_additions = True
        self._draws = 0
        self._artifacts: dict[str, Artifact] = {}
        self._cumulative_weights: list[float] | None = None

    def hand_over(self, sink: Sink) -> None:
        """Pass further additions to ``sink`` without keeping them; recorded ones come back by ``replay``.

        Stores of many processes then hold the same artifacts, in the order in which they were recorded. Exceptions of
        the sink propagate to the caller of ``add``.
        """
        self._sink = sink
        self._keeps_additions = False

    def add(self, artifact: Artifact) -> Artifact:
        """Add an artifact, by default named by its digest, or replace the one with its id; return it with its id.

        After ``hand_over`` the store contains it only once it comes back: in a league, some time after the match. A
        weight that is negative or infinite, or content that is not JSON, is a ``UsageError``.
        """
        validated = self._validate(artifact)
        if self._keeps_additions:
            self._keep(validated)
        if self._sink is not None:
            self._sink(ArtifactAdded(self.name, validated))
        return validated

    def replay(self, additions: Iterable[ArtifactAdded]) -> None:
        """Apply additions that were recorded before a restart; those of other stores are ignored."""
        for added in additions:
            if added.store == self.name:
                self._keep(self._validate(added.artifact))

    def sample(self, k: int = 1, weighted: bool = False, rng: Random | None = None) -> list[Artifact]:
        """Draw k artifacts, by default with the store's own source of randomness.

        Unweighted draws repeat an artifact only after all others. Weighted draws are independent. ``EpisodeError`` for
        an empty store, or if weights count and all are 0.
        """
        if k < 1:
            return []
        if not self._artifacts:
            raise EpisodeError(f"store {self.name!r}: it is empty; expected at least one artifact to draw {k}")
        if rng is None:
            self._draws += 1
            rng = Random(derive_seed(self._seed, "store", self.name, self._draws))
        known = list(self._artifacts.values())
        if not weighted:
            whole, rest = divmod(k, len(known))
            rounds = [rng.sample(known, len(known)) for _ in range(whole)] + [rng.sample(known, rest)]
            return [artifact for drawn in rounds for artifact in drawn]
        if self._cumulative_weights is None:
            self._cumulative_weights = list(accumulate(artifact.weight for artifact in known))
        if self._cumulative_weights[-1] <= 0:
            raise EpisodeError(f"store {self.name!r}: all {len(known)} weights are 0; expected one above")
        return rng.choices(known, cum_weights=self._cumulative_weights, k=k)

    def sample_one(self, weighted: bool = False, rng: Random | None = None) -> Artifact | None:
        """Draw an artifact; None from an empty store."""
        return self.sample(1, weighted, rng)[0] if self._artifacts else None

    def count(self) -> int:
        """Number of artifacts."""
        return len(self._artifacts)

    def get(self, artifact_id: str) -> Artifact | None:
        """The artifact of that id, or None."""
        return self._artifacts.get(artifact_id)

    def _keep(self, artifact: Artifact) -> None:
        self._artifacts[artifact.id] = artifact
        self._cumulative_weights = None

    def _validate(self, artifact: Artifact) -> Artifact:
        if not (isfinite(artifact.weight) and artifact.weight >= 0):
            raise UsageError(f"store {self.name!r}: weight {artifact.weight}; expected a finite number from 0")
        try:
            data = _encode(artifact.data)
        except (TypeError, ValueError) as error:
            raise UsageError(f"store {self.name!r}: an artifact that is not JSON ({error})") from None
        return artifact if artifact.id else msgspec.structs.replace(artifact, id=digest(data)[:16])
