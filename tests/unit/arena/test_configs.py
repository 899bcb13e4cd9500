"""The configurations of leagues that play episodes: what they name is there, and their groups fit their steps."""

from pathlib import Path

import pytest

from arena.clients import ScriptedClient
from arena.environments import arena_names, make_arena
from schemas.config import EpisodesConfig, LeagueConfig, convert, load_config
from schemas.errors import ConfigError
from trainer.advantages.base import ADVANTAGES
from trainer.credit import reward_uses_score
from trainer.losses import LOSSES

FOLDER = Path(__file__).parents[3] / "configs"
LEAGUES = {path.stem: load_config(path) for path in sorted(FOLDER.glob("*.toml"))}
OF_ARENAS = sorted(name for name, league in LEAGUES.items() if league.game.name in arena_names())


@pytest.fixture(params=OF_ARENAS)
def league(request: pytest.FixtureRequest) -> LeagueConfig:
    return LEAGUES[request.param]


def test_every_arena_has_a_league() -> None:
    assert sorted({LEAGUES[name].game.name for name in OF_ARENAS}) == arena_names()


def test_its_settings_make_an_arena_and_its_plugins_are_there(league: LeagueConfig) -> None:
    assert make_arena(league.game.name, league.game.settings).name == league.game.name
    assert ADVANTAGES.build(league.trainer.advantage)
    assert LOSSES.build(league.trainer.loss)


def test_it_is_trained_on_what_the_rubric_says(league: LeagueConfig) -> None:
    assert reward_uses_score(league.trainer), "a reward that does not look at the score knows nothing of episodes"


def test_a_step_has_room_for_every_group_of_a_batch(league: LeagueConfig) -> None:
    arena = make_arena(league.game.name, league.game.settings).open(ScriptedClient())
    sizes = {request.group: request.group_size for request in arena.get_batch() if request.group}

    assert all(league.trainer.rollouts_per_step >= size for size in sizes.values())
    assert all(league.rollout.games_in_flight >= size for size in sizes.values())


def test_members_of_a_group_are_compared_in_one_seat(league: LeagueConfig) -> None:
    spec = make_arena(league.game.name, league.game.settings)
    sizes = {request.group_size for request in spec.open(ScriptedClient()).get_batch()}

    fixed = set(league.trained_policies) <= set(league.matchmaking.seats)
    assert len(spec.seats) == 1 or fixed or all(league.rollout.same_seat % size == 0 for size in sizes)


def test_text_is_not_paid_for_being_unlikely(league: LeagueConfig) -> None:
    assert league.trainer.loss.settings.get("entropy") == 0.0, "over a whole vocabulary that pays for nonsense"


def test_silence_is_no_way_out_of_losing(league: LeagueConfig) -> None:
    assert league.episodes.empty == "count"


def test_what_becomes_of_silence_is_one_of_two_things() -> None:
    with pytest.raises(ConfigError, match=r"episodes\.empty: 'ignore'; expected 'count' or 'fail'"):
        convert({"empty": "ignore"}, EpisodesConfig, "episodes")


def test_it_ends(league: LeagueConfig) -> None:
    assert league.stop.steps
