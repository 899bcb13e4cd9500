"""What the four programs that this league continues document, written with this league's names.

Each test plays the facts of one of their examples. Modal and Ray are left out. What changed besides imports:

| example | change |
|---|---|
| debate, its arena | a debater's role ids are the arena's, as there; none |
| proposer and solvers, untrained solvers | a reply without a question fails there, here the test's parser returns one |
| negotiation with private observations | the rubric and the type that the base class asks for in both are added |
| one question, one answer | the same |
| reward functions, weights | none |
| scoring in place | ``rubric.score`` returns the rewards; the rollout stays as it is |
| credit in place | ``compute`` returns weights with the state, ``apply_credit`` copies |
| a client's class | none; ``ModelResponse`` takes its tokens as one object |
| training step by hand | ``request.meta`` is a dictionary of its own; a version set there is kept |
| verbose logger | it is entered, and set as the arena's observer |
| multi-player Elo, tiered opponents | functions of plain values are methods of a plugin |
| checkpoints that join, final scores | they follow from folded events, and from a position |
| TrueSkill of two | a rating system over seats and scores |
| transformations of rewards | over arrays of a batch, with their state |
"""

import asyncio
from random import Random
from typing import Any

import numpy as np
import pytest

from arena import (
    Actor,
    AlternatingRolesEpisode,
    Arena,
    Artifact,
    Episode,
    EpisodeRequest,
    GRPOCredit,
    InferenceClient,
    MockInferenceClient,
    ModelResponse,
    MultiTurnEpisode,
    RAECredit,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
    apply_credit,
    unconstrained_model_call,
)
from arena.games import make_game
from league.matchmaking.schedule import admission_reason
from league.ratings.base import SYSTEMS, Side
from league.ratings.elo import Elo
from league.samplers import SAMPLERS
from schemas.config import LeagueConfig, Plugin
from schemas.events import Event
from schemas.plugins import PluginStruct
from tests.builders import bot, checkpoint, checkpoint_added, league_state, model_call, standings, trajectory
from trainer.transforms import FINAL_TRANSFORMS, SAMPLING_TRANSFORMS, STEP_TRANSFORMS, FinalRewards

ROLES = ("Aff", "Neg")


def an_arena(client: Any, kind: type[Arena] = Arena, **options: Any) -> Any:
    arena = kind(client, **options)
    for role in ROLES:
        arena.add_role(Role(role, system_prompt=f"You are {role}."))
    return arena


# The engine: debate.


def debate_rubric(aff_role: str, neg_role: str) -> Rubric:
    async def llm_judge(rollout: Rollout, arena: Arena) -> dict[str, float]:
        said = "\n".join(step.completion_text for step in rollout.steps)
        verdict = await arena.call_model([{"role": "user", "content": said}])
        winner, loser = (aff_role, neg_role) if "Aff" in verdict.text else (neg_role, aff_role)
        return {winner: 1.0, loser: -1.0}

    return Rubric([llm_judge])


class DebateEpisode(AlternatingRolesEpisode):
    def __init__(self, aff_role_id="Aff", neg_role_id="Neg", num_rounds=3):  # type: ignore[no-untyped-def]
        super().__init__(max_turns=num_rounds * 2)
        self._rubric = debate_rubric(aff_role_id, neg_role_id)

    @property
    def episode_type(self) -> str:  # type: ignore[override]
        return "debate"

    @property
    def rubric(self) -> Rubric:  # type: ignore[override]
        return self._rubric

    def get_initial_prompt(self, arena, artifact, state) -> str:  # type: ignore[no-untyped-def]
        return f"Topic: {artifact.get('topic', 'Unknown')}"


class DebateArena(Arena):
    batch_size = 2

    async def on_train_start(self) -> None:
        self.trained = ["start"]

    async def on_train_end(self) -> None:
        self.trained.append("end")

    def get_batch(self) -> list[EpisodeRequest]:
        topics = self.stores["topics"].sample(k=self.batch_size)
        return [EpisodeRequest("debate", topic.data) for topic in topics]


def test_debate() -> None:
    arena = an_arena(MockInferenceClient("Aff"), DebateArena, credit_assigner=RAECredit(decay=0.95), verbose=False)
    arena.add_episode("debate", DebateEpisode())
    arena.add_store("topics")
    arena.stores["topics"].add(Artifact({"topic": "tea"}))

    async def batches() -> list[Any]:
        return [batch async for batch in arena.run(num_steps=2, concurrency=8, verbose=False)]

    first, second = asyncio.run(batches())
    assert len(first.records) == 12
    assert {record.reward for record in first.records} == {1.0, -1.0}
    assert arena.trained == ["start", "end"]
    # The running mean is 0 before the first batch and 5 % of the reward after it.
    assert {round(record.advantage, 9) for record in first.records} == {1.0, -1.0}
    assert {round(record.advantage, 9) for record in second.records} == {0.95, -0.95}


# The engine: proposer and solver.


class SolveEpisode(SingleTurnEpisode):
    episode_type = "solve"
    role_id = "Solver"
    rubric = Rubric([lambda rollout, arena: {"Solver": float(rollout.steps[0].completion_text == "4")}])

    def get_prompt(self, artifact: Any) -> str:
        return str(artifact)


class ProposerEpisode(Episode):
    episode_type = "propose"

    def __init__(self, trainable: bool) -> None:
        self.trainable = trainable
        self.rubric = Rubric([self.goldilocks])

    @staticmethod
    def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {"Proposer": 1.0 - 2 * abs(rollout.extras.get("pass_rate", 0.0) - 0.5)}

    async def rollout(self, arena, artifact, state=None):  # type: ignore[no-untyped-def]
        response = await self.call_model("Proposer", "A new problem.", arena)
        requests = [EpisodeRequest("solve", response.text, is_trainable=self.trainable) for _ in range(8)]
        state.child_results.extend(await arena.generate_rollouts(requests))
        return state

    def get_extras(self, state: Any) -> dict[str, Any]:
        wins = sum(1 for result in state.child_results if result.rewards.get("Solver", 0) > 0)
        return {"pass_rate": wins / len(state.child_results), "question": state.data.get("question")}


@pytest.mark.parametrize("trainable", [True, False])
def test_proposer_and_solvers(trainable: bool) -> None:
    said = iter(["2 + 2", *["4", "5"] * 4])
    arena = Arena(MockInferenceClient.from_function(lambda messages: next(said)), GRPOCredit())
    arena.add_actor(Actor(id="Proposer", system_prompt="You write problems."))
    arena.add_actor(Actor(id="Solver", system_prompt="You solve them."))
    arena.add_episode("propose", ProposerEpisode(trainable))
    arena.add_episode("solve", SolveEpisode())
    result = asyncio.run(arena.run_episode("propose", None))
    assert (result.rewards, result.rollout.extras["pass_rate"]) == ({"Proposer": 1.0}, 0.5)
    assert len(result.all_rollouts()) == 9
    credit = GRPOCredit().compute([result])
    batch = arena.build_training_batch(apply_credit([result], credit.weights), credit.weights, verbose=False)
    assert len(batch.records) == (9 if trainable else 1)
    # Solvers are compared with those of the same parent, the proposer with other proposers: there is none.
    advantages: dict[str, set[float]] = {}
    for record in batch.records:
        advantages.setdefault(record.role_id, set()).add(record.advantage)
    assert advantages == {"Proposer": {0.0}, **({"Solver": {0.5, -0.5}} if trainable else {})}


# Core concepts.


class GSM8KEpisode(SingleTurnEpisode):
    def get_prompt(self, artifact: dict[str, str]) -> str:
        return artifact["question"]


def correctness_reward(rollout: Rollout, arena: Arena) -> dict[str, float]:
    return {"Solver": 1.0 if rollout.steps[0].completion_text.split()[-1] == rollout.artifact.get("answer") else 0.0}


def brevity_reward(rollout: Rollout, arena: Arena) -> dict[str, float]:
    return {"Solver": max(0, 0.5 - len(rollout.steps[0].completion_text.split()) / 200)}


def test_one_question_with_two_weighted_rewards() -> None:
    episode = GSM8KEpisode()
    episode.episode_type = "gsm8k"
    episode.rubric = Rubric(funcs=[correctness_reward, brevity_reward], weights=[1.0, 0.5])
    arena = Arena(MockInferenceClient("it is 4"))
    arena.add_actor(Actor("Solver"))
    arena.add_episode("gsm8k", episode)
    result = asyncio.run(arena.run_episode("gsm8k", {"question": "2 + 2?", "answer": "4"}))
    assert result.rewards == {"Solver": pytest.approx(1.0 + 0.5 * (0.5 - 3 / 200))}
    scores = asyncio.run(episode.rubric.score(result.rollout, arena))
    assert scores.rewards == result.rewards


class NegotiationEpisode(MultiTurnEpisode):
    episode_type = "negotiation"
    rubric = Rubric([lambda rollout, arena: {role: float(rollout.extras["turns"]) for role in ROLES}])

    def get_initial_actor(self):  # type: ignore[no-untyped-def, override]
        return "Aff"

    def get_next_actor(self, state):  # type: ignore[no-untyped-def, override]
        return "Neg" if state.current_actor == "Aff" else "Aff"

    def get_observation(self, state, arena, artifact) -> str:  # type: ignore[no-untyped-def]
        return f"Your resources: {artifact[state.current_actor]}"

    def env_response(self, state, arena, artifact) -> str:  # type: ignore[no-untyped-def]
        state.data["game_over"] = state.last_completion_text == "accept"
        return "noted"

    def is_done(self, state, arena, artifact):  # type: ignore[no-untyped-def, override]
        return state.turn >= self.max_turns or state.data.get("game_over")

    def get_extras(self, state: Any) -> dict[str, Any]:
        return {"turns": state.turn}


def test_a_negotiation_with_private_observations() -> None:
    arena = an_arena(MockInferenceClient("an offer", "accept"))
    arena.add_episode("negotiation", NegotiationEpisode(max_turns=6))
    rollout = asyncio.run(arena.run_episode("negotiation", {"Aff": "3 gold", "Neg": "5 wood"})).rollout
    assert rollout.rewards == {"Aff": 2.0, "Neg": 2.0}
    first, second = ("\n".join(message.content for message in step.prompt) for step in rollout.steps)
    assert "3 gold" in first
    assert "3 gold" not in second
    assert "noted" in second


class TrainerClient(InferenceClient):
    """A client with the four parameters that the engine names."""

    async def complete(self, messages, temperature=1.0, max_tokens=None, return_tokens=True):  # type: ignore[no-untyped-def, override]
        tokens = unconstrained_model_call([1, 2], [3], [-0.5])
        return ModelResponse("Aff", tokens if return_tokens else None)

    async def get_policy_version(self) -> int:
        return 3


def test_a_training_step_by_hand() -> None:
    arena = an_arena(TrainerClient(), credit_assigner=GRPOCredit(normalize=False, positive_only=False))
    arena.add_episode("debate", DebateEpisode(num_rounds=1))

    async def step() -> Any:
        requests = [EpisodeRequest("debate", {"topic": "tea"}, meta={}) for _ in range(2)]
        version = await arena.client.get_policy_version()
        for request in requests:
            request.meta["policy_version"] = version
        results = await arena.generate_rollouts(requests, concurrency=8)
        credit = arena.credit_assigner.compute(results)
        return arena.build_training_batch(apply_credit(results, credit.weights))

    batch = asyncio.run(step())
    record = batch.records[0]
    assert record.meta["policy_version"] == 3
    assert (record.prompt_token_ids, record.completion_token_ids, record.logprobs) == ([1, 2], [3], [-0.5])
    assert (record.input_ids, record.action_mask) == ([1, 2, 3], [0, 0, 1])
    assert len(batch.records) == 4


# League Training.


def test_multi_player_elo_by_pairs() -> None:
    """Each pair's expectation and outcome, times a sixth of k: the specification's loop over seven seats."""
    random = Random(1)
    ratings = {f"agent {seat}": random.uniform(800, 1200) for seat in range(7)}
    expected = dict(ratings)
    scores = {name: float(random.randint(0, 3)) for name in ratings}
    names = list(ratings)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            share = 1 / (1 + 10 ** ((ratings[other] - ratings[one]) / 400))
            outcome = 1.0 if scores[one] > scores[other] else 0.5 if scores[one] == scores[other] else 0.0
            expected[one] += 32 / 6 * (outcome - share)
            expected[other] -= 32 / 6 * (outcome - share)
    sides = [Side((name,), score) for name, score in scores.items()]
    after = Elo(k=32.0).update({name: (rating,) for name, rating in ratings.items()}, sides)
    assert {name: state[0] for name, state in after.items()} == expected


def test_opponents_by_tiers_of_elo() -> None:
    """Within 100 points five, within 300 two, else a half; baselines twice as much."""
    agents = [bot("random_bot", 1190.0, baseline=True), *(checkpoint(n, 1200.0 + n) for n in (0, 250, 900))]
    table = standings(*agents)
    hero = table.live["main"].rating
    weights = {}
    for agent in agents:
        gap = abs(agent.rating - hero)
        weights[agent.name] = (5.0 if gap < 100 else 2.0 if gap < 300 else 0.5) * (2.0 if agent.baseline else 1.0)
    buckets = SAMPLERS.build(Plugin("tiered")).distribution(table, "main").values()
    drawn = {name: one.share * chance for one in buckets for name, chance in one.probabilities().items()}
    total = sum(weights.values())
    assert {name: drawn[name] * total for name in weights} == pytest.approx(weights)


def test_checkpoints_join_by_the_geometric_schedule() -> None:
    """The first, every tenth while it is recent, and every hundredth; an elite joins by its rating, elsewhere."""
    config = LeagueConfig()
    joined: list[Event] = []
    for version in range(1, 221):
        state = league_state(config, *joined)
        expected = not joined or version % 10 == 0
        assert (admission_reason(state, "main", version) is not None) == expected, version
        if expected:
            joined.append(checkpoint_added(version))


def test_final_scores_with_a_bonus_for_a_clear_winner() -> None:
    game, random = make_game("diplomacy", {"max_year": 1903, "winner_threshold_sc": 5}).new(4), Random(4)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, random) for seat in moving})
    position = game.position  # type: ignore[attr-defined]
    most = max(len(centers) for centers in position.centers)
    leaders = [seat for seat, centers in enumerate(position.centers) if len(centers) == most]
    expected = [
        len(centers) + 0.5 * len(units) + 5.0 * (leaders == [seat] and most >= 5)
        for seat, (centers, units) in enumerate(zip(position.centers, position.units, strict=True))
    ]
    assert list(game.outcome().scores) == expected


# Unstable Baselines.


def test_trueskill_of_two() -> None:
    system = SYSTEMS.build(Plugin("trueskill"))
    start = {"me": system.start(1000.0), "them": system.start(1000.0)}
    won = system.update(start, [Side(("me",), 1.0), Side(("them",), 0.0)])
    drawn = system.update(start, [Side(("me",), 0.0), Side(("them",), 0.0)])
    assert won["me"][0] > 1000.0 > won["them"][0]
    assert drawn["me"][0] == pytest.approx(drawn["them"][0])


def test_transformations_of_step_and_batch_rewards() -> None:
    played = [trajectory(f"m-{number}", [model_call() for _ in range(3)]) for number in range(2)]
    discount = STEP_TRANSFORMS.build(Plugin("discount", {"gamma": 0.97}))
    assert discount(played[0], np.ones(3)).tolist() == pytest.approx([1.0, 0.97, 0.97**2])
    normal = SAMPLING_TRANSFORMS.build(Plugin("normalise_by_env", {"z_score": True}))
    values = np.concatenate(normal(played, [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])]))
    assert values.mean() == pytest.approx(0.0, abs=1e-9)
    assert values.std() == pytest.approx(1.0, abs=1e-6)
    clamp = SAMPLING_TRANSFORMS.build(Plugin("clamp", {"min": -2.0, "max": 2.0}))
    assert [one.tolist() for one in clamp(played, [np.array([-9.0, 1.0, 9.0])] * 2)] == [[-2.0, 1.0, 2.0]] * 2


class Scale(PluginStruct, frozen=True):
    """A final transformation of one's own: every reward times a factor."""

    alpha: float = 0.1

    def __call__(self, rollouts: Any, values: Any, state: Any) -> FinalRewards:
        return FinalRewards([value * self.alpha for value in values], state)


def test_final_rewards_in_a_row() -> None:
    played = [trajectory("m-0", [model_call()], scores=[7.0, 3.0], seat=0)]
    finals = FINAL_TRANSFORMS.build(Plugin("win_draw_loss"))(played, [np.array([7.0, 3.0])], {})
    assert [value.tolist() for value in Scale(alpha=0.2)(played, finals.values, finals.state).values] == [[0.2, -0.2]]
