"""Rating seven-player matches against the packages of the same names, in plain Python on one core.

Elo's peer is the specification's formula. Seconds are those of the thread that computes.
"""

import sys
import time
from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

from benchmarks.sizes import is_installed, size
from league.ratings.base import Side, State, make_rating_system
from schemas.config import Plugin

SEATS = 7
AGENTS = [f"main@{number}" for number in range(199)]
Match = list[tuple[str, float]]
Ratings = dict[str, Any]


class _Peer(NamedTuple):
    """Another implementation of a system."""

    system: str
    name: str
    make: Callable[[], tuple[Callable[[State], Any], Callable[[Ratings, Match], None], Callable[[Any], State]]]
    """Makes three functions: of a rating, of the effect of a match, and of a rating's numbers."""
    matches: int
    tolerance: float
    """Rating points by which the two may differ after the sample; what the peer's arithmetic leaves open."""
    package: str = ""


def make_matches(count: int) -> list[Match]:
    """Seven different agents a match; scores are supply centres, so that ties occur as they do in Diplomacy."""
    rng = Random(0)
    return [[(agent, float(rng.randrange(12))) for agent in rng.sample(AGENTS, SEATS)] for _ in range(count)]


def begin(name: str) -> dict[str, State]:
    """States of all agents, at different ratings: the packages' order of draws is then ours."""
    system = make_rating_system(Plugin(name=name))
    return {agent: system.start(1000.0 + number) for number, agent in enumerate(AGENTS)}


def rate(name: str, matches: list[Match]) -> tuple[dict[str, State], float]:
    """States after the matches, and matches per second."""
    system, states = make_rating_system(Plugin(name=name)), begin(name)
    started = time.thread_time()
    for match in matches:
        sides = [Side((agent,), score) for agent, score in match]
        states.update(system.update({agent: states[agent] for agent, _ in match}, sides))
    return states, len(matches) / (time.thread_time() - started)


def rate_with_peer(peer: _Peer, matches: list[Match]) -> tuple[dict[str, State], float]:
    """The same by a peer."""
    to_rating, play, to_state = peer.make()
    ratings = {agent: to_rating(state) for agent, state in begin(peer.system).items()}
    started = time.thread_time()
    for match in matches:
        play(ratings, match)
    seconds = time.thread_time() - started
    return {agent: to_state(rating) for agent, rating in ratings.items()}, len(matches) / seconds


def make_formula(k: float = 32.0) -> Any:
    """The specification's pairwise update."""

    def play(ratings: Ratings, match: Match) -> None:
        before = {agent: ratings[agent] for agent, _ in match}
        for (a, score_a), (b, score_b) in combinations(match, 2):
            expected = 1 / (1 + 10 ** ((before[b] - before[a]) / 400))
            actual = 1.0 if score_a > score_b else 0.5 if score_a == score_b else 0.0
            ratings[a] += (k / 6) * (actual - expected)
            ratings[b] -= (k / 6) * (actual - expected)

    return (lambda state: state[0]), play, (lambda rating: (rating,))


def make_trueskill() -> Any:
    """The package trueskill in the league's points, with its own normal distribution."""
    import trueskill

    env = trueskill.TrueSkill(1000, 400, 200, 4, 0.1, None)
    # The default of the package, which takes beta for 25/6, in the league's points.
    min_delta = 1e-4 * (25 / 6) / 200

    def play(ratings: Ratings, match: Match) -> None:
        # Draws in the order of the ratings, as in the league; the package takes them as they come.
        order = sorted(match, key=lambda seat: (-seat[1], -ratings[seat[0]].mu))
        teams = [(ratings[agent],) for agent, _ in order]
        found = env.rate(teams, [-score for _, score in order], min_delta=min_delta)
        ratings.update((agent, team[0]) for (agent, _), team in zip(order, found, strict=True))

    return (lambda state: trueskill.Rating(*state)), play, tuple


def make_openskill() -> Any:
    """The package openskill in the league's points."""
    from openskill.models import BradleyTerryFull

    ours: Any = make_rating_system(Plugin(name="openskill"))
    model = BradleyTerryFull(1000, ours.sigma, ours.beta, ours.kappa, tau=ours.tau)

    def play(ratings: Ratings, match: Match) -> None:
        found = model.rate([[ratings[agent]] for agent, _ in match], ranks=[-score for _, score in match])
        ratings.update((agent, team[0]) for (agent, _), team in zip(match, found, strict=True))

    return (lambda state: model.rating(*state)), play, (lambda rating: (rating.mu, rating.sigma))


PEERS = [
    _Peer("elo", "specification's formula", make_formula, size(50_000, 99), 0.0),
    _Peer("openskill", "package openskill", make_openskill, size(10_000, 30), 1e-9, "openskill"),
    _Peer("trueskill", "package trueskill", make_trueskill, size(2_000, 9), 0.01, "trueskill"),
]


def main() -> int:
    """Print the comparison; 1 when numbers differ by more than the peer's arithmetic leaves open."""
    print(f"matches of {SEATS} seats, per second on one core")
    print(f"{'system':<12}{'league':>12}   {'peer':<26}{'':>10}{'ratio':>8}   largest difference in points")
    worst = 0
    for peer in PEERS:
        if peer.package and not is_installed(peer.package):
            print(f"{peer.system:<12}skipped: {peer.package} is not installed")
            continue
        matches = make_matches(peer.matches)
        found, speed = rate(peer.system, matches)
        expected, peer_speed = rate_with_peer(peer, matches)
        difference = max(abs(x - y) for agent in AGENTS for x, y in zip(found[agent], expected[agent], strict=True))
        worst = max(worst, int(difference > peer.tolerance))
        print(
            f"{peer.system:<12}{speed:>12,.0f}   {peer.name:<26}{peer_speed:>10,.0f}{speed / peer_speed:>7.1f}×   "
            f"{difference:.1e} after {peer.matches:,} matches"
        )
    return worst


if __name__ == "__main__":
    sys.exit(main())
