"""Cluster sampling where adapter slots are short: a match never needs more adapters than a process keeps ready.

A process keeps ``inference.max_adapters`` ready, the live ones of all policies among them. What is left is for
opponents: every checkpoint takes one, however many seats it sits in; bots, the base model, remote agents and whoever
plays with a live adapter take none.

A draw that needs more is dealt again: the seats form as many groups as there are slots, in turn, and within a group
whoever needs an adapter plays as the first one who does. Seats are drawn alike and independently of each other, so
whom the first one drew says as much about the second one's chances as its own draw: every seat still meets everybody
with the probability that the sampler states. Only who sits together changes.

Source: the league specification's cluster sampling, two distinct opponents cloned over the seats when memory is short.
"""

from collections.abc import Sequence

from league.samplers.base import SeatDraw
from schemas.config import LeagueConfig
from schemas.events import Pick
from schemas.standings import Standings


def free_slots(standings: Standings, config: LeagueConfig) -> int:
    """Adapters that opponents of one match may need beside the live ones; 0 or more."""
    return max(config.inference.max_adapters - len(_held(standings)), 0)


def fitted(draws: Sequence[SeatDraw], standings: Standings, config: LeagueConfig, hero: str) -> list[SeatDraw]:
    """The draws of a match with opponents cloned until their adapters fit; as they are when they do.

    With no slot at all beside the live ones, whoever needs an adapter makes way for the mirror.

    Args:
        draws: Of all seats but the hero's.
        standings: What they were drawn from.
        config: Gives the slots.
        hero: Who plays the mirror.
    """
    free = free_slots(standings, config)
    if len(draws) <= free:
        return list(draws)
    held = _held(standings)
    adapters = [_needed(drawn.pick.agent, standings, held) for drawn in draws]
    if len({adapter for adapter in adapters if adapter is not None}) <= free:
        return list(draws)
    first: dict[int, SeatDraw] = {}
    dealt = []
    for place, (drawn, adapter) in enumerate(zip(draws, adapters, strict=True)):
        if adapter is None:
            dealt.append(drawn)
        elif not free:
            dealt.append(SeatDraw(Pick(drawn.pick.seat, hero, "mirror"), drawn.steps))
        else:
            leader = first.setdefault(place % free, drawn)
            dealt.append(SeatDraw(Pick(drawn.pick.seat, leader.pick.agent, leader.pick.bucket), leader.steps))
    return dealt


def _held(standings: Standings) -> set[str]:
    return {live.adapter for live in standings.live.values() if live.adapter is not None}


def _needed(agent: str, standings: Standings, held: set[str]) -> str | None:
    """The adapter that an agent takes a slot for; None when it takes none.

    Only checkpoints do: who is no member of the league was drawn as a policy's live version.
    """
    known = standings.agents.get(agent)
    return None if known is None or known.adapter in held else known.adapter
