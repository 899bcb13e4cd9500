"""What an episode comes to as a match, and which arenas cannot be matches."""

from collections.abc import Sequence
from random import Random

import pytest

from arena.arena import Arena
from arena.clients import InferenceClient, ScriptedClient
from arena.environments import ArenaOptions, ArenaSpec
from schemas.episodes import GenerateResult, Message, Role, Rollout
from schemas.errors import ConfigError, EpisodeError
from workers.match_runner.episodes import check_seats, make_outcome


class Spec(ArenaSpec):
    """Seats whose roles have their names."""

    name = "spec"

    def __init__(self, *seats: str) -> None:
        self.seats = seats

    def open(self, client: InferenceClient, opening: ArenaOptions = ArenaOptions()) -> Arena:  # noqa: B008 - immutable
        return Arena(client)

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        return ""


def result(metrics: dict[str, float] | None = None, **rewards: float) -> GenerateResult:
    return GenerateResult(Rollout("m", "talk", None, [], rewards=rewards, metrics=metrics or {}))


def test_seats_are_ranked_by_their_roles_rewards_and_ties_are_nobodys() -> None:
    spec = Spec("A", "B", "C")
    outcome = make_outcome(spec, result(A=1.0, B=3.0, C=1.0))
    assert (outcome.scores, outcome.ranks, outcome.winner) == ((1.0, 3.0, 1.0), (2, 1, 2), 1)
    assert make_outcome(spec, result(A=1.0, B=1.0)).winner is None
    assert make_outcome(spec, result({"won/A": 1.0}, A=1.0)).metrics == ({"won.A": 1.0},) * 3


@pytest.mark.parametrize(("score", "winner"), [(0.5, 0), (0.0, None), (-1.0, None)])
def test_alone_a_seat_has_won_what_passes(score: float, winner: int | None) -> None:
    outcome = make_outcome(Spec("A"), result(A=score))
    assert (outcome.winner, outcome.ranks) == (winner, (1,))


class Odd(Spec):
    """Says what it was told to for scores."""

    given: tuple[float, ...] = ()

    def score(self, result: GenerateResult) -> tuple[float, ...]:
        return self.given


@pytest.mark.parametrize(
    ("given", "said"), [((1.0,), "1 scores; expected one for each of 2 seats"), ((1.0, float("nan")), "nan among")]
)
def test_scores_that_are_none_make_no_match(given: tuple[float, ...], said: str) -> None:
    spec = Odd("A", "B")
    spec.given = given
    with pytest.raises(EpisodeError, match=said):
        make_outcome(spec, result())


def test_metrics_that_are_no_numbers_make_no_match() -> None:
    with pytest.raises(EpisodeError, match="inf among scores and metrics"):
        make_outcome(Spec("A"), result({"f/A": float("inf")}, A=1.0))


def test_every_role_of_a_seat_is_one_and_has_one_seat() -> None:
    arena = Arena(ScriptedClient())
    arena.add_role(Role("A"))
    check_seats(Spec("A"), arena)
    with pytest.raises(ConfigError, match="seat 'B' speaks for 'B', which is not a role"):
        check_seats(Spec("A", "B"), arena)
    with pytest.raises(ConfigError, match="role 'A' has the seats 0 and 1"):
        check_seats(Spec("A", "A"), arena)
