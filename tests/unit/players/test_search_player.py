"""A policy with search: the candidates are its own samples, and rollouts choose among them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import msgspec
import pytest

from arena.games import make_game
from arena.games.base import Action, Game, GameSpec
from arena.games.diplomacy import Settings
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.spec import DiplomacySpec
from arena.match import BotPlayer, play
from inference import InferenceBackend, SamplingParameters, make_backend
from league.matchmaking.schedule import initial_agent_events
from lifecycle.config_checks import check_config
from models import Tokenizer, make_base
from players.policy import PolicyPlayer
from players.prompt_builder import make_constrained_prompter
from players.search import Rollouts, SearchPlayer, check_searchable, position_value
from schemas.config import LeagueConfig, SearchConfig, convert
from schemas.errors import ConfigError, ModelError
from schemas.events import AgentRetired

SETTINGS = {"seats": 2, "heaps": [3, 4], "shuffle": False}


@pytest.fixture(scope="module")
def nim() -> GameSpec:
    return make_game("nim", SETTINGS)


@pytest.fixture(scope="module")
def base(nim: GameSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), nim.text().vocabulary())


def policy(backend: InferenceBackend, base: Path, nim: GameSpec) -> PolicyPlayer:
    prompter = make_constrained_prompter(Tokenizer(base), nim.text())
    return PolicyPlayer(backend, prompter, lambda: (0, None), SamplingParameters())


def with_backend(base: Path, work: Callable[[InferenceBackend], Any]) -> Any:
    async def run() -> Any:
        backend = make_backend("local", base)
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


def first_moves(base: Path, nim: GameSpec, config: SearchConfig | None, seeds: Sequence[int]) -> list[Action]:
    async def work(backend: InferenceBackend) -> list[Action]:
        def player() -> PolicyPlayer | SearchPlayer:
            plain = policy(backend, base, nim)
            return plain if config is None else SearchPlayer(plain, nim, config)

        return [await player().act(nim.new(0), 0, seed) for seed in seeds]

    found: list[Action] = with_backend(base, work)
    return found


def test_a_single_sample_is_what_the_policy_plays(base: Path, nim: GameSpec) -> None:
    seeds = range(6)
    assert first_moves(base, nim, SearchConfig(samples=1), seeds) == first_moves(base, nim, None, seeds)


def test_a_sample_that_fails_ends_the_others(nim: GameSpec) -> None:
    class Samples:
        cancelled = 0

        async def act(self, game: Game, seat: int, seed: int) -> Action:
            if seed == 5:
                await asyncio.sleep(0)
                raise ModelError("refused")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return nim.new(0).random_action(0, Random(seed))

    samples: Any = Samples()
    searcher = SearchPlayer(samples, nim, SearchConfig(samples=3, bot="random_bot"))

    async def search() -> int:
        with pytest.raises(ModelError, match="refused"):
            await searcher.act(nim.new(0), 0, 5)
        return samples.cancelled

    assert asyncio.run(search()) == 2


def test_equal_seeds_search_alike_and_the_position_is_left_alone(base: Path, nim: GameSpec) -> None:
    config = SearchConfig(samples=6, rollouts=4, horizon=0, bot="random_bot")
    game = nim.new(0)
    before = game.save()

    async def work(backend: InferenceBackend) -> list[Action]:
        return [await SearchPlayer(policy(backend, base, nim), nim, config).act(game, 0, 5) for _ in range(2)]

    first, second = with_backend(base, work)
    assert first == second
    assert game.save() == before


def test_a_rollout_to_the_end_finds_the_winning_move(base: Path) -> None:
    """With one heap of three, taking all of it wins at once: rollouts tell it from every other move."""
    nim = make_game("nim", SETTINGS | {"heaps": [3]})
    config = SearchConfig(samples=32, rollouts=8, horizon=0, bot="random_bot")
    moves = first_moves(base, nim, config, range(5))
    won = nim.new(0)
    won.apply({0: moves[0]})
    assert not won.to_move()
    assert position_value(won, 0) == 1.0
    assert len(set(moves)) == 1


@pytest.mark.parametrize(
    "search",
    [
        {"samples": 3, "bot": "random_bot"},
        {"samples": 3},
        # Two moves are the bot's.
        {"samples": 1, "rollouts": 8, "horizon": 0, "bot": "random_bot", "proposals": ["random_bot"]},
    ],
)
def test_whole_games_are_played_and_each_turn_is_one_decision_among_all_samples(
    base: Path, nim: GameSpec, search: dict[str, Any]
) -> None:
    config = SearchConfig(**{"horizon": 1} | search)

    async def work(backend: InferenceBackend) -> tuple[Game, SearchPlayer]:
        searcher = SearchPlayer(policy(backend, base, nim), nim, config)
        game = nim.new(3)
        await play(game, [searcher, BotPlayer(nim.bot("random_bot"))], 3)
        return game, searcher

    game, searcher = with_backend(base, work)
    own = ["; ".join(turn[0]) for turn in nim.open_record(game.record()).turns if 0 in turn]
    assert len(searcher.model_calls) >= config.samples * len(own)
    assert [note.move for _, note in searcher.decisions()] == own
    assert all(call in searcher.model_calls for call, _ in searcher.decisions())


def test_unfinished_positions_count_by_their_share_of_progress(nim: GameSpec) -> None:
    game = nim.new(0)
    assert position_value(game, 0) == 0.5
    game.apply({0: game.random_action(0, Random(0))})
    assert (position_value(game, 0), position_value(game, 1)) == (1.0, 0.0)


def test_squares_count_the_leader_and_the_winner(nim: GameSpec) -> None:
    game = nim.new(0)
    for seat, action in ((0, ("1:2",)), (1, ("2:1",))):
        game.apply({seat: action})
    assert [position_value(game, seat, "squares") for seat in (0, 1)] == [0.8, 0.2]
    for seat, action in ((0, ("1:1",)), (1, ("2:3",))):
        game.apply({seat: action})
    assert [position_value(game, seat, "squares") for seat in (0, 1)] == [9 / 50, (16 / 25 + 1) / 2]


def test_a_fitted_value_of_a_finished_game_is_its_squares_and_needs_a_value_function(nim: GameSpec) -> None:
    spec, config = DiplomacySpec(Settings(max_year=1901)), SearchConfig(value="fitted", horizon=0, bot="greedy")
    game, rng = spec.new(0), Random(0)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    assert position_value(game, 0, "fitted") == position_value(game, 0, "squares")
    check_searchable(spec, config)
    with pytest.raises(ConfigError, match=r"search\.value: nim has no value function; expected share or squares"):
        check_searchable(nim, msgspec.structs.replace(config, bot="random_bot"))


class Observed(DiplomacySpec):
    """Diplomacy that keeps the copies of positions that are played on."""

    def __init__(self) -> None:
        super().__init__(Settings(max_year=1903))
        self.copies: list[Game] = []

    def load(self, saved: bytes) -> DiplomacyGame:
        """See ``GameSpec.load``."""
        self.copies.append(game := super().load(saved))
        return game


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("board"), Observed().text().vocabulary())


def search_opening(board: Path, spec: Observed, config: SearchConfig, seed: int) -> Action:
    async def work(backend: InferenceBackend) -> Action:
        return await SearchPlayer(policy(backend, board, spec), spec, config).act(spec.new(0), 0, seed)

    action: Action = with_backend(board, work)
    return action


def test_single_orders_are_replaced_as_long_as_the_value_rises(board: Path) -> None:
    """By the search's own measure; an order comes from a candidate, and the whole from none."""
    config = SearchConfig(samples=3, proposals=["mover"], bot="greedy", whole_rounds=True, rollouts=2)
    climbing = msgspec.structs.replace(config, replacements=60)
    gains = []
    for seed in range(3):
        spec = Observed()
        best, climbed = (search_opening(board, spec, each, seed) for each in (config, climbing))
        assert spec.new(0).is_legal(0, climbed)
        game = spec.new(0)
        rollouts = Rollouts(spec, config, BotPlayer(spec.bot("greedy")), game.save(), 0, seed)
        before, after = (fmean(asyncio.run(rollouts.values(action, config.rollouts))) for action in (best, climbed))
        assert (after > before) == (climbed != best)
        gains.append(after - before)
    assert max(gains) > 0


def test_promising_actions_get_more_rollouts_than_others(board: Path) -> None:
    """Nine candidates of 2 rollouts each, five of 4 and three of 8: 18 + 10 + 12 copies, where 8 for all were 72."""
    config = SearchConfig(samples=9, bot="greedy", horizon=1, rollouts=2, most_rollouts=8)
    spec = Observed()
    chosen = search_opening(board, spec, config, 2)
    assert len(spec.copies) == 40
    everything, alike = Observed(), msgspec.structs.replace(config, rollouts=8)
    search_opening(board, everything, alike, 2)
    assert len(everything.copies) == 72
    assert spec.new(0).is_legal(0, chosen)


def test_a_margin_keeps_what_rollouts_cannot_tell_apart(board: Path) -> None:
    config = SearchConfig(samples=3, proposals=["mover"], bot="greedy", whole_rounds=True, rollouts=2, most_rollouts=4)
    climbing = msgspec.structs.replace(config, replacements=60)
    cautious = msgspec.structs.replace(climbing, margin=1e6)
    chosen = [
        [search_opening(board, Observed(), each, seed) for seed in range(3)] for each in (config, climbing, cautious)
    ]
    assert chosen[2] == chosen[0] != chosen[1]


def test_the_other_seats_act_by_what_they_played_in_the_match(board: Path) -> None:
    """A model that has seen the other seats hold all year expects them to hold; one that saw them attack does not."""
    config = SearchConfig(samples=4, proposals=["mover"], rollouts=2, bot="greedy", horizon=1, opponent_model=True)

    async def work(backend: InferenceBackend) -> list[float]:
        kept = []
        for behaviour in ("hold", "greedy"):
            spec = Observed()
            game, player = spec.new(0), SearchPlayer(policy(backend, board, spec), spec, config)
            while game.clock == 1901:
                actions = {}
                for seat in game.to_move():
                    held = tuple(sorted(f"{unit} H" for unit in game.position.units[seat]))
                    is_held = behaviour == "hold" and game.position.kind == "M"
                    actions[seat] = held if is_held else spec.bot("greedy").act(game, seat, Random(seat))
                if 0 in actions:
                    actions[0] = await player.act(game, 0, 3)
                    assert game.is_legal(0, actions[0])
                game.apply(actions)
            spec.copies.clear()
            await player.act(game, 0, 5)
            before = {unit for seat in range(1, 7) for unit in game.position.units[seat]}
            after = [{unit for seat in range(1, 7) for unit in copy.position.units[seat]} for copy in spec.copies]  # type: ignore[attr-defined]
            kept.append(sum(len(before & each) for each in after) / len(after) / len(before))
        return kept

    held, attacked = with_backend(board, work)
    assert held > 0.8 > attacked + 0.2


def test_rollouts_go_on_to_the_end_of_the_year(board: Path) -> None:
    for whole, years in ((False, {1901}), (True, {1902})):
        spec = Observed()
        search_opening(board, spec, SearchConfig(samples=2, horizon=1, bot="greedy", whole_rounds=whole), 1)
        assert {game.clock for game in spec.copies} == years


def league(game: str, search: dict[str, Any], tables: dict[str, Any] | None = None, **settings: Any) -> LeagueConfig:
    agents = {
        "base_model": {"kind": "base", "baseline": True},
        "random_bot": {"kind": "bot"},
        "searcher": {"kind": "search", "search": search},
    }
    game_table = {"name": game, "settings": settings}
    return convert({"game": game_table, "agents": agents} | (tables or {}), LeagueConfig, "")


@pytest.mark.parametrize(
    ("game", "search", "says"),
    [
        ("kuhn_poker", {}, "agents.searcher.search: kuhn_poker hides information"),
        ("nim", {"bot": "kaos_bot"}, "agents.searcher.search.bot: nim has no bot 'kaos_bot'"),
        ("negotiation", {}, "agents.searcher.search: negotiation has no positions to copy; expected a game"),
        ("nim", {"proposals": ["kaos_bot"]}, "agents.searcher.search.proposals: nim has no bot 'kaos_bot'"),
        ("nim", {"value": "cubes"}, "search.value: 'cubes'; expected 'fitted', 'share' or 'squares'"),
        ("nim", {"policy": "other"}, "agents.searcher.search.policy: 'other'; expected 'main'"),
        ("nim", {"samples": 0}, "search.samples: 0; expected 1 or more"),
        ("nim", {"margin": -1}, "search.margin: -1"),
        (
            "diplomacy",
            {"opponent_model": True, "opponent_bots": ["kaos_bot"]},
            "search.opponent_bots: diplomacy has no bot",
        ),
        ("diplomacy", {"opponent_bots": ["mover"]}, "search.opponent_bots: expected opponent_model = true"),
        ("nim", {"opponent_model": True}, "agents.searcher.search.opponent_model: nim has none; expected false"),
    ],
)
def test_what_cannot_be_searched_is_refused(game: str, search: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(league(game, search))
    assert says in str(error.value)


def test_settings_and_kind_belong_together() -> None:
    for agent in ({"kind": "search"}, {"kind": "bot", "search": {}}):
        agents = {"base_model": {"kind": "base"}, "x": agent}
        with pytest.raises(ConfigError, match=r"agents.x.search: expected for kind 'search', and only for it"):
            convert({"agents": agents}, LeagueConfig, "")


def test_samplers_do_not_draw_a_searching_agent() -> None:
    events = initial_agent_events(league("nim", {"samples": 4, "bot": "random_bot"}))
    assert [event.agent for event in events if isinstance(event, AgentRetired)] == ["searcher"]
