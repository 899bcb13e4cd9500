"""The opponent pool without a server: distributions of virtual models, draws, results, and the fold of sessions."""

from collections import Counter
from typing import Any

import pytest

import schemas.events as e
from league.matchmaking.audit import total_variation
from league.matchmaking.sessions import (
    draw_session,
    session_distribution,
    session_expiry,
    session_result,
    virtual_models,
)
from league.samplers import Distribution, agent_probabilities
from league.state import LeagueState
from league.state import saved_state as session_fold
from schemas.config import LeagueConfig
from schemas.errors import UsageError
from schemas.ids import digest, session_match_id
from schemas.standings import Agent, LivePolicy, Standings, WinLoss

CONFIG = LeagueConfig()
LANGUAGE = {"base_model", *(f"main@{version}" for version in (10, 20, 30, 40, 50, 60))}


def standings() -> Standings:
    """Peers of the external agent, one that it loses to and is rated below it, and agents that are not eligible."""
    checkpoints = [
        Agent(f"main@{v}", "checkpoint", rating, 9, adapter=digest(str(v).encode()), policy="main", version=v)
        for v, rating in ((10, 1010.0), (20, 1020.0), (30, 1030.0), (40, 500.0))
    ]
    agents = [
        Agent("base_model", "base", 1000.0, 9, baseline=True),
        Agent("random_bot", "bot", 1000.0, 9, baseline=True),
        *checkpoints,
        Agent("grpo@3", "external", 1000.0, 0, active=False, policy="grpo", version=3),
    ]
    live = {"main": LivePolicy("main", 60, digest(b"60"), 1100.0)}
    return Standings(7, {agent.name: agent for agent in agents}, live, {"grpo": {"main@40": WinLoss(1, 0, 5)}})


def distribution(model: str) -> Distribution:
    return session_distribution(standings(), CONFIG, model, "grpo@3", LANGUAGE.__contains__)


def terms(number: int, **fields: Any) -> e.SessionOpened:
    name = f"episode {number}"
    facts = {"model": "league/pfsp", "agent": "grpo@3", "seat": 1, "game": "kuhn", "worker": "w"} | fields
    return e.SessionOpened(
        match_id=session_match_id("grpo", name),
        session=name,
        roles=["a", "b"],
        opponent="",
        probabilities={},
        opened=10.0,
        expires=70.0,
        **facts,
    )


def opened(number: int = 1, **fields: Any) -> e.SessionOpened:
    found = distribution("league/pfsp")
    return draw_session(terms(number, **fields), standings(), CONFIG, found)[1]


def test_the_mirror_and_ineligible_agents_leave_their_share_to_the_others() -> None:
    found = distribution("league/pfsp")
    assert {name: (bucket.share, sorted(bucket.weights)) for name, bucket in found.items()} == {
        "peers": (pytest.approx(0.4 / 0.7), ["main@10", "main@20", "main@30"]),
        "exploitable": (pytest.approx(0.2 / 0.7), ["main@40"]),
        "baselines": (pytest.approx(0.1 / 0.7), ["base_model"]),
    }
    uniform = agent_probabilities(distribution("league/uniform"))
    assert uniform == pytest.approx(dict.fromkeys(["base_model", "main@10", "main@20", "main@30", "main@40"], 0.2))


def test_fixed_virtual_models_are_one_agent() -> None:
    def only(model: str) -> dict[str, float]:
        return agent_probabilities(distribution(model))

    assert only("league/best") == {"main@30": 1.0}
    assert only("league/main") == {"main@60": 1.0}
    assert only("league/main@50") == {"main@50": 1.0}
    for model in ("league/random_bot", "league/main@999", "league/nothing"):
        with pytest.raises(UsageError, match=f"model '{model}': unknown; expected 'league/best'"):
            only(model)


def test_every_virtual_model_draws_eligible_agents_or_says_that_there_are_none() -> None:
    for model in virtual_models():
        try:
            found = agent_probabilities(distribution(model))
        except UsageError as error:
            assert "no agent that grpo@3 could meet" in str(error)  # noqa: PT017
        else:
            assert set(found) <= LANGUAGE
            assert sum(found.values()) == pytest.approx(1.0)


def test_five_thousand_sessions_follow_the_target() -> None:
    now = standings()
    drawn = Counter[str]()
    for number in range(5000):
        found = distribution("league/pfsp")
        sampled, session = draw_session(terms(number), now, CONFIG, found)
        drawn[session.opponent] += 1
        assert [pick.agent for pick in sampled.picks] == [session.opponent]
    realised = {agent: count / 5000 for agent, count in drawn.items()}
    assert total_variation(realised, session.probabilities) <= 0.02


def test_a_draw_is_recomputed_from_the_same_standings() -> None:
    assert opened(4) == opened(4)
    assert len({opened(number).opponent for number in range(40)}) > 2


def test_a_result_has_the_seats_in_order_and_scores_that_fit() -> None:
    session = opened()
    result = session_result(session, [0.5, 2.0], "w2", 3.0, "folded", 4)
    assert [(s.role, s.agent, s.rank) for s in result.seats] == [("a", session.opponent, 2), ("b", "grpo@3", 1)]
    assert (result.winner, result.purpose, result.worker, result.game) == (1, "session", "w2", "kuhn")
    assert session_result(session, [1.0, 1.0], "w", 0.0).winner is None
    for scores, words in (([1.0], "found 1; expected 2"), ([float("nan"), 0.0], "finite")):
        with pytest.raises(UsageError, match=words):
            session_result(session, scores, "w", 0.0)


def test_the_first_opening_and_the_first_end_of_a_session_count() -> None:
    state, session = LeagueState(), opened()
    other = opened(1, worker="w2", model="league/best")
    events = [session, other, session_result(session, [1.0, 0.0], "w", 1.0), session_expiry(session, "w"), other]
    for sequence, event in enumerate(events, start=1):
        state.apply(sequence, event)
    ended = state.sessions.ended[session.match_id]
    assert not state.sessions.open
    assert (ended.opponent, ended.scores, ended.error, ended.sequence) == (session.opponent, [1.0, 0.0], "", 3)
    again = LeagueState.from_snapshot(state.to_snapshot())
    assert again.digest() == state.digest()


def test_external_versions_and_open_sessions_survive_a_snapshot() -> None:
    state = LeagueState()
    for sequence, version in enumerate((0, 5), start=1):
        added = e.ExternalVersionAdded(agent=f"grpo@{version}", policy="grpo", version=version, worker="w")
        state.apply(sequence, added)
    state.apply(3, opened())
    again = LeagueState.from_snapshot(state.to_snapshot())
    assert (again.external_versions, list(again.sessions.open)) == ({"grpo": 5}, list(state.sessions.open))
    assert not any(agent.active for agent in again.standings().agents.values())


def test_old_ended_sessions_are_forgotten_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_fold, "MAX_ENDED", 3)
    table = session_fold.SessionTable()
    for number in range(5):
        table.begin(opened(number))
        table.end(number, session_expiry(opened(number), "w"))
    assert [one.session for one in table.ended.values()] == ["episode 2", "episode 3", "episode 4"]
