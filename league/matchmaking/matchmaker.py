"""Makes training matches: hero, opponents, seats and seed.

A match is a pure function of (standings, configuration, match id), so it can be recomputed from the history: fold up to
``OpponentsSampled.standings_sequence`` and call ``recompute_draw``.
"""

from random import Random

import msgspec

from league.matchmaking.pool import fit_to_slots
from league.matchmaking.roles import sampler_of
from league.samplers import Distribution, live_hero, make_sampler
from schemas.codec import canonical_json
from schemas.config import LeagueConfig
from schemas.errors import UsageError
from schemas.events import Event, OpponentPick, OpponentsSampled
from schemas.ids import derive_seed, digest, policy_of
from schemas.jobs import PlayMatch, SeatCounts
from schemas.standings import Standings

PURPOSE = "training"


class RecomputedDraw(msgspec.Struct, frozen=True):
    """A recorded draw, recomputed."""

    match: PlayMatch
    """Recomputed line-up and seed."""
    picks: list[OpponentPick]
    """Recomputed opponents, clones included."""
    distribution: Distribution
    """Buckets that the opponents were drawn from."""
    differences: list[str]
    """Fields of the recorded draw that differ from the recomputed one: recorded, recomputed."""

    @property
    def agrees(self) -> bool:
        """Whether hero, seat, standings, seed, configuration and picks are as recorded."""
        return not self.differences


def make_match(
    standings: Standings,
    config: LeagueConfig,
    worker: str,
    index: int,
    seats: int | SeatCounts,
    policy: str | None = None,
) -> tuple[PlayMatch, OpponentsSampled]:
    """Make the ``index``-th training match of a worker, and the event that records its draw.

    The index begins at ``LeagueState.next_match_index``; the hero's seat rotates with it, unless ``matchmaking.seats``
    fixes it. ``policy`` is the hero's, by default the trainer's. Matches of a group (``rollout.group_size``) have seed,
    seat and draw in common, if they are made from equal standings.

    Raises:
        UsageError: no version of the hero's policy has been published.
    """
    match_id, size = f"{worker}-{index}", config.rollout.group_size
    # Named by its first match, so that no name comes again when the size changes.
    group = f"{worker}-group-{index // size * size}" if size > 1 else ""
    policy = policy or config.trainer.policy
    plugin = sampler_of(config, policy)
    hero, _ = live_hero(standings, policy)
    match_seed = derive_seed(config.seed, "match", group or match_id)
    seats = seats if isinstance(seats, int) else seats.choose(match_seed).seats
    hero_seat = config.matchmaking.seats.get(policy, index // size // config.rollout.same_seat % seats)
    seed = derive_seed(config.seed, "opponents", group or match_id)
    opponent_seats = [seat for seat in range(seats) if seat != hero_seat]
    drawn = make_sampler(plugin).sample(standings, policy, opponent_seats, Random(seed))
    picks = fit_to_slots(drawn, standings, config, policy)
    agents = {hero_seat: hero} | {pick.seat: pick.agent for pick in picks}
    match = PlayMatch(
        match_id=match_id,
        purpose=PURPOSE,
        seats=[agents[seat] for seat in range(seats)],
        seed=match_seed,
        group=group,
        group_size=size if group else 0,
    )
    sampled = OpponentsSampled(
        match_id=match_id,
        worker=worker,
        hero=hero,
        hero_seat=hero_seat,
        sampler=plugin.name,
        sampler_digest=digest(canonical_json(plugin)),
        standings_sequence=standings.sequence,
        draw=seed,
        picks=picks,
    )
    return match, sampled


def recompute_draw(event: OpponentsSampled, standings: Standings, config: LeagueConfig) -> RecomputedDraw:
    """Recompute a recorded draw.

    The standings are folded up to ``event.standings_sequence``, and the configuration is that in force there.

    Raises:
        UsageError: the match id does not have ``make_match``'s form, or the hero had no version at that sequence.
    """
    index = event.match_id.rpartition("-")[2]
    if not (index.isascii() and index.isdigit()):
        raise UsageError(f"match id {event.match_id!r}; expected <worker>-<number>")
    policy = policy_of(event.hero) or config.trainer.policy
    match, again = make_match(standings, config, event.worker, int(index), len(event.picks) + 1, policy)
    return RecomputedDraw(
        match=match,
        picks=again.picks,
        distribution=make_sampler(sampler_of(config, policy)).distribution(standings, policy),
        differences=recorded_differences(event, again),
    )


def recorded_differences(recorded: Event, again: Event) -> list[str]:
    """Fields of a recorded event that differ from the recomputed one."""
    return [
        f"{name}: recorded {_format_value(old)}, recomputed {_format_value(new)}"
        for name in recorded.__struct_fields__
        if (old := getattr(recorded, name)) != (new := getattr(again, name))
    ]


def _format_value(value: object) -> str:
    if isinstance(value, list) and all(isinstance(pick, OpponentPick) for pick in value):
        return " ".join(f"{pick.seat}:{pick.agent}({pick.bucket})" for pick in value)
    return str(value)
