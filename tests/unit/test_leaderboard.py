"""The leaderboard under every system: recorded or computed, by agent, seat and kind, with intervals."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from benchmarks.synthetic_matches import simulate_ranked_matches
from league.analysis.bradley_terry import FitOptions, fit_strengths
from league.analysis.leaderboard import LIKELIHOOD_MODELS, Leaderboard, make_leaderboard
from league.analysis.roster import relabel_by_kind, relabel_by_role, split_entrant
from league.analysis.summary import leaderboard_rows as of_state
from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.ratings.arrays import MatchArrays, RatingRule, StartRating, fold_arrays
from league.ratings.base import SYSTEMS
from league.ratings.fold import RatingFold
from league.ratings.rating_history import DEFAULT_DRAWS, MIN_GAMES, affordable_draws, bootstrap_intervals
from league.state import LeagueState
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig
from schemas.errors import UsageError
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7),
    ratings=RatingsConfig(also=(Plugin(name="trueskill", settings={}),)),
)
HISTORY = Simulation(CONFIG).run_with_voids(16)
END = len(HISTORY)
ELO = [RatingRule(0, RatingsConfig())]


@pytest.fixture(scope="module")
def league() -> Iterator[Projection]:
    with Projection() as projection:
        projection.apply(HISTORY)
        yield projection


def board(league: Projection, upto: int = END, **wanted: object) -> Leaderboard:
    return make_leaderboard(league.connection, upto, **wanted)  # type: ignore[arg-type]


def state_at(upto: int) -> LeagueState:
    state = LeagueState()
    for recorded in HISTORY[:upto]:
        state.apply(recorded.sequence, recorded.event)
    return state


@pytest.mark.parametrize("upto", [END, END // 2, END // 3, 4])
def test_the_official_board_is_that_of_the_state_then(league: Projection, upto: int) -> None:
    found = board(league, upto)
    assert (found.recorded, found.official, found.system) == (True, True, "elo")
    assert [(r.rank, r.agent, r.kind, r.rating, r.rated_games, r.active, r.reason) for r in found.rows] == [
        (r.rank, r.agent, r.kind, r.rating, r.games, r.active, r.reason) for r in of_state(state_at(upto))
    ]
    rows = league.query(f"SELECT agent, wins, mean_rank FROM leaderboard_at({upto}) ORDER BY rank")
    assert [(r.agent, r.wins, r.mean_rank) for r in found.rows] == rows
    assert found.matches == len(league.query(f"FROM rated_matches_at({upto})"))


def test_a_system_beside_the_official_one_is_shown_as_recorded_with_everybodys_deviation(league: Projection) -> None:
    found, state = board(league, system="trueskill", draws=0), state_at(END)
    [table] = [table for table in state.to_snapshot().tables if table.system == "trueskill"]
    rated = {one.agent: (one.rating, one.rest[0], one.games) for one in table.ratings}
    assert (found.recorded, found.official) == (True, False)
    assert {r.agent: (r.rating, r.deviation, r.rated_games) for r in found.rows if r.rated_games} == {
        agent: one for agent, one in rated.items() if agent in {row.agent for row in of_state(state)}
    }
    assert all(row.deviation for row in found.rows)


@pytest.mark.parametrize("system", ["glicko2", "openskill"])
def test_any_other_system_is_what_a_league_that_had_it_would_say(league: Projection, system: str) -> None:
    config = msgspec.structs.replace(CONFIG, ratings=RatingsConfig(system=Plugin(name=system)))
    voided = {r.event.match.match_id for r in HISTORY if isinstance(r.event, e.MatchVoided)}
    fold = RatingFold(config, follow=False, skip=voided)
    for recorded in HISTORY:
        fold.apply(recorded.sequence, recorded.event)
    expected = {one.agent: (one.rating, one.rest[0], one.games) for one in fold.rated_agents("diplomacy")}
    found = board(league, system=system, draws=0)
    assert not found.recorded
    rated = {r.agent: (r.rating, r.deviation, r.rated_games) for r in found.rows if r.rated_games}
    assert rated == {agent: expected[agent] for agent in rated}
    assert {row.agent for row in found.rows} == {row.agent for row in of_state(state_at(END))}


@pytest.mark.parametrize("system", [*SYSTEMS.names(), *LIKELIHOOD_MODELS])
@pytest.mark.parametrize("by", ["agent", "seat", "kind"])
def test_every_system_ranks_agents_seats_and_kinds(league: Projection, system: str, by: str) -> None:
    found = board(league, system=system, by=by, draws=10)
    placed = [row for row in found.rows if row.rating is not None]
    assert [row.rank for row in placed] == list(range(1, len(placed) + 1))
    assert [row.rating for row in placed] == sorted((row.rating for row in placed if row.rating), reverse=True)
    assert found.draws == 10
    with_ends = [row for row in placed if row.low is not None and row.high is not None]
    assert len(with_ends) > 1
    assert all(row.low <= row.high for row in with_ends if row.low is not None and row.high is not None)
    assert len({(row.agent, row.seat, row.kind) for row in found.rows}) == len(found.rows)
    assert bool(found.seats) == (system in LIKELIHOOD_MODELS)


def test_a_board_says_when_the_luck_of_a_seed_is_counted_as_a_seats(league: Projection) -> None:
    [(matches, seeds)] = league.query(
        f"SELECT count(*), count(DISTINCT seed) FROM matches JOIN rated_matches_at({END}) USING (sequence)"
    )
    assert seeds < matches
    [note] = board(league, by="seat", draws=2).notes
    assert board(league, draws=2).notes == []
    assert board(league, system="plackett_luce", by="seat", draws=2).notes == [note]
    [note] = board(league, system="plackett_luce", draws=2).notes
    assert f"{matches:,} matches began from {seeds:,} seeds" in note
    assert board(league, system="plackett_luce", draws=0).notes == []


def test_matches_of_a_cluster_are_drawn_together() -> None:
    once = with_roles(simulate_ranked_matches([50.0, 0.0, -50.0], 60, 3, 5, [40.0, 0.0, -40.0]), 3)
    often = once.select(np.repeat(np.arange(60), 5))
    seats = (often.begin_M[:, None] + np.arange(3)).ravel()
    often = replace(
        often,
        sequence_M=np.arange(1, 301),
        begin_M=np.arange(0, 900, 3),
        end_M=np.arange(3, 903, 3),
        **{name: getattr(once, name)[seats] for name in ("agent_S", "score_S", "role_S")},
    )
    options = FitOptions(draws=100)

    def width(matches: MatchArrays, clusters: list[int] | None) -> float:
        rows = fit_strengths(matches, matches.role_S, options, clusters).roles
        return float(np.mean([row.high - row.low for row in rows if row.high is not None and row.low is not None]))

    told_five_times, told_once = width(often, None), width(once, None)
    assert told_five_times < 0.6 * told_once
    assert width(often, np.repeat(np.arange(60), 5).tolist()) == pytest.approx(told_once, rel=0.15)
    assert width(once, list(range(60))) == told_once
    system = ("simulated", "elo", ELO, 100)
    apart, together = (
        bootstrap_intervals(once, *system),
        bootstrap_intervals(once, *system, cluster_M=[0] * 30 + [1] * 30),
    )
    assert bootstrap_intervals(once, *system, cluster_M=list(range(60))) == apart != together
    with pytest.raises(UsageError, match="60 matches have 3 clusters"):
        fit_strengths(once, None, options, [1, 2, 3])


def test_seats_and_kinds_add_up_to_agents(league: Projection) -> None:
    agents, seats, kinds = (board(league, by=by, draws=0).rows for by in ("agent", "seat", "kind"))
    by_agent = {row.agent: row for row in agents}
    wins, seen = Counter[str](), Counter[str]()
    for row in seats:
        wins[row.agent] += row.wins
        seen[row.agent] += 1
    assert {agent: by_agent[agent].wins for agent in wins} == dict(wins)
    assert max(seen.values()) == 7
    assert {row.seat for row in seats} == {f"SEAT{n}" for n in range(7)}
    assert {row.kind for row in kinds} == {"base", "bot", "checkpoint"}
    bots = [row for row in agents if row.kind == "bot"]
    assert sum(row.wins for row in bots) == next(row.wins for row in kinds if row.kind == "bot")


def test_a_game_that_nobody_played_has_its_agents_and_no_intervals(league: Projection) -> None:
    for system in ("elo", "openskill", "bradley_terry"):
        found = board(league, 4, system=system)
        assert (found.matches, found.draws) == (0, 0)
        assert {row.agent for row in found.rows} == {"base_model", "random_bot", "chaos_bot"}
        assert all(row.low is None for row in found.rows)
        assert all((row.rating is None) == (system in LIKELIHOOD_MODELS) for row in found.rows)


def test_what_does_not_exist_is_refused_with_what_does(league: Projection) -> None:
    with pytest.raises(UsageError, match=r"system 'elo2'.*'bradley_terry', 'elo', 'glicko2'"):
        board(league, system="elo2")
    with pytest.raises(UsageError, match=r"game 'go'.*expected 'diplomacy'"):
        board(league, game="go")


def test_agents_that_never_met_the_others_have_no_place_on_a_board() -> None:
    names = ["left@1", "left@2"]
    joined = [
        e.CheckpointAdded(agent=name, policy="left", version=n, parent="", reason="recent", adapter="")
        for n, name in enumerate(names, start=1)
    ]
    records = [
        *HISTORY,
        *(RecordedEvent(END + n, 0, "s", "w", encode_event(one)) for n, one in enumerate(joined, start=1)),
    ]
    for n in range(3):
        seats = [e.SeatResult(i, f"SEAT{i}", name, float(i), 1) for i, name in enumerate(names)]
        match = msgspec.structs.replace(a_match(), match_id=f"apart-{n}", seats=seats)
        records.append(RecordedEvent(len(records) + 1, 0, "s", "w", encode_event(match)))
    with Projection() as projection:
        projection.apply(records)
        found = board(projection, len(records), system="bradley_terry", draws=0)
    assert any("2 of" in note and "never met" in note for note in found.notes)
    places = [row.rank for row in found.rows]
    rated = sum(rank is not None for rank in places)
    assert 0 < rated < len(places)
    assert places == [*range(1, rated + 1), *[None] * (len(places) - rated)]


def a_match() -> e.MatchFinished:
    return next(r.event for r in HISTORY if isinstance(r.event, e.MatchFinished) and r.event.purpose == "evaluation")


def with_roles(matches: MatchArrays, seats: int) -> MatchArrays:
    roles = np.tile(np.arange(seats, dtype=np.int32), len(matches))
    return replace(matches, role_S=roles, roles=[f"R{seats - n}" for n in range(seats)])


def test_roles_by_code_are_roles_by_name() -> None:
    matches = with_roles(simulate_ranked_matches([100.0, 0.0, -100.0], 200, 3, 1, [50.0, 0.0, -50.0]), 3)
    names = [matches.roles[code] for code in matches.role_S]
    assert fit_strengths(matches, matches.role_S, FitOptions(draws=5)) == fit_strengths(
        matches, names, FitOptions(draws=5)
    )
    assert [role.name for role in fit_strengths(matches, names, FitOptions(draws=0)).roles] == ["R1", "R2", "R3"]


def test_an_agent_in_one_seat_starts_and_inherits_as_the_agent_does() -> None:
    matches = with_roles(simulate_ranked_matches([0.0] * 3, 40, 3, 2, names=["main@1", "main@2", "random_bot"]), 3)
    starts = {"random_bot": StartRating(800.0, 0), "base_model": StartRating(1100.0, 0)}
    matches = relabel_by_role(replace(matches, starts=starts, base="base_model"))
    assert {split_entrant(name) for name in matches.agents} == {
        (a, f"R{n}") for a in ("main@1", "main@2", "random_bot") for n in (1, 2, 3)
    }
    still = [RatingRule(0, RatingsConfig(system=Plugin(name="elo", settings={"k": 1e-9})))]
    found = {split_entrant(one.agent): round(one.rating) for one in fold_arrays(matches, still)["simulated", "elo"]}
    assert {name: rating for (name, _), rating in found.items()} == {"main@1": 1100, "main@2": 1100, "random_bot": 800}
    moved = {split_entrant(one.agent): one.rating for one in fold_arrays(matches, ELO)["simulated", "elo"]}
    assert len(set(moved.values())) == 9


def test_seats_of_one_kind_are_not_compared() -> None:
    matches = simulate_ranked_matches([0.0] * 4, 50, 3, 3, names=["main@1", "main@2", "random_bot", "chaos_bot"])
    kinds = relabel_by_kind(matches, {"random_bot": "bot", "chaos_bot": "bot"})
    assert kinds.agents == ["bot", "checkpoint"]
    [bots, checkpoints] = sorted(fold_arrays(kinds, ELO)["simulated", "elo"], key=lambda one: one.agent)
    assert bots.rating + checkpoints.rating == pytest.approx(2000.0)
    assert bots.games == checkpoints.games == 50


def test_intervals_depend_on_the_seed_alone_and_need_some_games() -> None:
    matches = simulate_ranked_matches([200.0, 0.0, -200.0, 0.0], 60, 3, 4)
    rare = replace(matches, agents=[*matches.agents, "rare"], agent_S=matches.agent_S.copy())
    rare.agent_S[[0, 6, 12, 18]] = 4
    found = bootstrap_intervals(rare, "simulated", "elo", ELO, draws=50)
    assert found == bootstrap_intervals(rare, "simulated", "elo", ELO, draws=50)
    assert found != bootstrap_intervals(rare, "simulated", "elo", ELO, draws=50, seed=1)
    games = {one.agent: one.games for one in fold_arrays(rare, ELO)["simulated", "elo"]}
    assert games["rare"] < MIN_GAMES <= min(n for name, n in games.items() if name != "rare")
    assert set(found) == set(games) - {"rare"}
    assert bootstrap_intervals(rare, "simulated", "elo", ELO, draws=0) == {}


@pytest.mark.parametrize("system", ["elo", "trueskill"])
def test_intervals_hold_where_other_luck_would_have_ended(system: str) -> None:
    rules = [RatingRule(0, RatingsConfig(system=Plugin(name=system)))]
    elo = [150.0, 50.0, -50.0, -150.0]

    def ends(seed: int) -> tuple[MatchArrays, dict[str, float]]:
        matches = simulate_ranked_matches(elo, 300, 4, seed)
        return matches, {one.agent: one.rating for one in fold_arrays(matches, rules)["simulated", system]}

    others = [ends(seed)[1] for seed in range(300)]
    expected = {name: np.mean([one[name] for one in others]) for name in others[0]}
    held = [
        low <= expected[name] <= high
        for seed in range(1000, 1030)
        for name, (low, high) in bootstrap_intervals(ends(seed)[0], "simulated", system, rules, draws=100).items()
    ]
    assert len(held) == 120
    assert 0.85 < np.mean(held) <= 1.0


def test_long_histories_get_fewer_draws_and_then_none() -> None:
    assert affordable_draws(1_000, 7_000) == DEFAULT_DRAWS
    assert 40 <= affordable_draws(50_000, 350_000) < DEFAULT_DRAWS
    assert affordable_draws(1_000_000, 7_000_000) == 0
    assert affordable_draws(0, 0) == 0
