"""Training matches that were begun and have not been trained on: how far play is ahead of training."""

import msgspec

from schemas.events import GradientStepTaken, MatchFinished, OpponentsSampled
from schemas.ids import split_agent


class SavedInPlay(msgspec.Struct, frozen=True):
    """The counts for a snapshot."""

    playing: dict[str, dict[str, str]]
    waiting: dict[str, int]


class InPlay:
    """Counts, per policy, matches being played and rollouts waiting for the trainer."""

    def __init__(self) -> None:
        self._playing: dict[str, dict[str, str]] = {}
        """``_playing[worker][match]`` is the hero's policy."""
        self._waiting: dict[str, int] = {}

    def ahead(self, policy: str) -> int:
        """Matches of a policy begun and not used, stale or refused yet."""
        playing = sum(hero == policy for matches in self._playing.values() for hero in matches.values())
        return playing + self._waiting.get(policy, 0)

    def begin(self, event: OpponentsSampled) -> None:
        """A match was made."""
        hero = split_agent(event.hero)
        if hero is not None:
            self._playing.setdefault(event.worker, {})[event.match_id] = hero[0]

    def end(self, worker: str, match_id: str, finished: MatchFinished | None) -> None:
        """A match ended; ``finished`` is None when it failed."""
        policy = self._playing.get(worker, {}).pop(match_id, None)
        if finished is not None and finished.experience and policy is not None:
            trainable = [split_agent(seat.agent) for seat in finished.seats if seat.trainable]
            for hero in [named[0] for named in trainable if named] or [policy]:
                self._waiting[hero] = self._waiting.get(hero, 0) + 1

    def use(self, step: GradientStepTaken) -> None:
        """A step consumed rollouts."""
        used = step.accepted + step.stale + step.filtered + step.refused + step.voided
        used += step.count("given_up") + step.count("late")
        self._waiting[step.policy] = max(self._waiting.get(step.policy, 0) - used, 0)

    def forget(self, worker: str) -> None:
        """A worker left or began anew: what it had in play will not end."""
        self._playing.pop(worker, None)

    def saved(self) -> SavedInPlay:
        """The counts for a snapshot."""
        return SavedInPlay({worker: dict(matches) for worker, matches in self._playing.items()}, dict(self._waiting))

    @classmethod
    def restored(cls, saved: SavedInPlay) -> "InPlay":
        """The counts that were saved."""
        in_play = cls()
        in_play._playing, in_play._waiting = saved.playing, saved.waiting
        return in_play
