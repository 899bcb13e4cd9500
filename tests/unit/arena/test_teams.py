"""Teams and roles of games: who declares them, and what is wrong with a declaration."""

import asyncio
import json
from random import Random
from typing import Any

import pytest

from arena.games import make_game
from arena.games.base import Outcome, TeamSizes, check_outcome
from arena.games.textarena.teams import seat_sides
from arena.match import BotPlayer, play
from lifecycle.external_results import parse_results
from schemas.errors import GameError, UsageError


def played(name: str, settings: dict[str, Any], seed: int = 3) -> Outcome:
    game, rng = make_game(name, settings).new(seed), Random(seed)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    outcome = game.outcome()
    check_outcome(name, outcome, len(game.seats))
    return outcome


@pytest.mark.parametrize("game", ["bridge", "spades", "euchre", "tiny_bridge_4p"])
def test_partners_at_cards_are_a_team_with_one_result(game: str) -> None:
    outcome = played("openspiel", {"game": game, "max_turns": 2_000})
    assert outcome.teams == ("NS", "EW", "NS", "EW")
    assert sorted(outcome.ranks) in ([1, 1, 2, 2], [1, 1, 1, 1])
    assert outcome.winner is None or outcome.ranks[outcome.winner] == 1


def test_the_solo_player_of_skat_is_alone_against_the_defenders() -> None:
    outcome = played("openspiel", {"game": "skat", "max_turns": 2_000})
    assert sorted(outcome.teams) == ["defenders", "defenders", "solo"]


def test_who_can_only_win_together_is_one_team_without_a_winner() -> None:
    outcome = played("openspiel", {"game": "tiny_hanabi"})
    assert (set(outcome.teams), outcome.winner, set(outcome.ranks)) == ({"all"}, None, {1})


def test_hidden_roles_are_known_at_the_end_and_differ_from_match_to_match() -> None:
    outcomes = [played("textarena", {"env": "SecretMafia-v0"}, seed) for seed in (3, 4)]
    for outcome in outcomes:
        assert sorted(outcome.teams) == ["Mafia"] * 2 + ["Village"] * 4
        assert sorted(outcome.roles) == ["Detective", "Doctor", "Mafia", "Mafia", "Villager", "Villager"]
        won = [team for team, rank in zip(outcome.teams, outcome.ranks, strict=True) if rank == 1]
        assert outcome.winner is not None
        assert set(won) == {outcome.teams[outcome.winner]}
    assert outcomes[0].roles != outcomes[1].roles


def test_codenames_has_two_teams_of_a_spymaster_and_an_operative() -> None:
    # The environment itself needs data of nltk.
    codenames = pytest.importorskip("textarena.envs.Codenames.env").CodenamesEnv
    sides = seat_sides(object.__new__(codenames), 4)
    assert sides == (("Red", "Red", "Blue", "Blue"), ("Spymaster", "Operative", "Spymaster", "Operative"))


def outcome_of(scores: list[float], teams: list[str]) -> Outcome:
    return Outcome.of(scores, teams, metrics=(), reason="over", length=1)


def test_a_team_has_its_members_mean_score_and_one_rank() -> None:
    outcome = outcome_of([0.0, 3.0, 1.0, 2.0, 9.0], ["a", "b", "a", "b", "c"])
    assert outcome.scores == (0.5, 2.5, 0.5, 2.5, 9.0)
    assert (outcome.ranks, outcome.winner) == ((3, 2, 3, 2, 1), 4)
    assert outcome_of([1.0, 1.0, 0.0], ["b", "b", "a"]).winner == 0
    assert outcome_of([1.0, 1.0], ["a", "b"]).winner is None


@pytest.mark.parametrize("teams", [["NS", "EW", "NS"], ["NS", "EW", "NS", ""]])
def test_a_team_with_a_member_missing_is_named(teams: list[str]) -> None:
    with pytest.raises(GameError, match=r"bridge: seat 3 has no team in .*; expected one for each of 4 seats"):
        check_outcome("bridge", outcome_of([1.0, 0.0, 1.0, 0.0], teams), 4)


def test_members_of_a_team_must_share_a_result() -> None:
    odd = Outcome((1.0, 0.0, 0.5, 0.0), (1, 3, 2, 3), 0, ({},) * 4, "over", 1, teams=("a", "b", "a", "b"))
    with pytest.raises(GameError, match=r"team 'a' has a member with score and rank \(0\.5, 2\); expected \(1\.0, 1\)"):
        check_outcome("mine", odd, 4)


def test_teams_that_differ_between_matches_are_named_with_both_matches() -> None:
    sizes = TeamSizes()
    sizes.check("m1", "SecretMafia-v0", ["Mafia", "Village", "Village"])
    sizes.check("m2", "SecretMafia-v0", ["Village", "Mafia", "Village"])
    sizes.check("m3", "SecretMafia-v0", ["Mafia", "Mafia", "Village", "Village"])
    found, expected = "Mafia with 2, Village with 1", "Mafia with 1, Village with 2"
    with pytest.raises(GameError, match=f"match m4: the teams .* are {found}; expected {expected}, as in match m1"):
        sizes.check("m4", "SecretMafia-v0", ["Mafia", "Mafia", "Village"])


def test_a_match_between_bots_reports_its_teams() -> None:
    spec = make_game("openspiel", {"game": "tiny_bridge_4p"})
    players = [BotPlayer(spec.bot("random_bot")) for _ in spec.seats]
    assert asyncio.run(play(spec.new(1), players, 1)).teams == ("NS", "EW", "NS", "EW")


ROW = {"env_name": "SecretMafia-v0", "players": list("abcd"), "rewards": [1, -1, 1, 1]}
TEAMS = {"teams": ["Village", "Mafia", "Village", "Village"], "roles": ["Doctor", "Mafia", "Villager", "Villager"]}


def test_teams_and_roles_of_a_row_are_imported() -> None:
    _, [result] = parse_results(json.dumps(ROW | TEAMS).encode(), "games.jsonl", "textarena")
    assert [(seat.team, seat.drawn_role) for seat in result.seats][:2] == [("Village", "Doctor"), ("Mafia", "Mafia")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"teams": ["a", "b", "a"]}], r"games\.jsonl, line 1: teams: player 3: found null; expected a name"),
        (
            [TEAMS, {"teams": list("aabb")}],
            r"line 2: match g1: the teams of SecretMafia-v0 are a with 2, b with 2; .*g0",
        ),
    ],
)
def test_rows_with_a_member_missing_or_with_other_teams_are_refused(rows: list[Any], message: str) -> None:
    data = "\n".join(json.dumps(ROW | row | {"game_id": f"g{number}"}) for number, row in enumerate(rows))
    with pytest.raises(UsageError, match=message):
        parse_results(data.encode(), "games.jsonl", "textarena")
