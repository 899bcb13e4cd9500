"""What differs between runs: who is met, and by whom. Everything else is the game's, for all arms alike."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from benchmarks.ablation.games import GameBenchmark
from schemas.config import (
    AgentConfig,
    CheckpointScheduleConfig,
    HistoryConfig,
    ImitationConfig,
    InferenceConfig,
    LeagueConfig,
    MatchmakingConfig,
    ModelConfig,
    Plugin,
    PolicyConfig,
    RatingsConfig,
    RolloutConfig,
    SearchConfig,
    StopConfig,
    TrainerConfig,
)
from schemas.errors import UsageError

MAIN = "main"
STUDENTS, TEACHERS = (MAIN, "student"), ("teacher", "tutor")
"""The policies of populations; an arm with one pair has the first of each."""
UNLIMITED = 1_000_000
SEARCH = SearchConfig(samples=4, rollouts=4, horizon=0, bot="random_bot")
"""That is imitated: the policy's samples, played on to the end of the game at random."""
COMPARISONS = 10
"""How often a member of a population is compared with the others, at most: it is replaced where it is the weakest."""
MODEL_SHAPE = {
    **{"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 16, "mlp": 64},
    # Moves whose embeddings are all but the same cannot be told apart by any adapter: with 0.02 no move of
    # rock-paper-scissors came to more than two thirds.
    "init_std": 0.2,
}
"""Of the base model, which is cloned from random play."""


class Setting(msgspec.Struct, frozen=True):
    """How the learner is set, for every arm alike. All arms are trained with all of them, so that nothing is picked."""

    title: str
    entropy: float
    """Weight of the bonus."""
    learning_rate: float = 3e-3
    schedule: Literal["constant", "linear"] = "constant"
    """Of the learning rate: ``linear`` falls to 0 as the budget of games is spent."""


SETTINGS = {
    "plain": Setting("no entropy bonus", 0.0),
    "entropy": Setting("entropy bonus 0.1", 0.1),
    "slow": Setting("no entropy bonus, learning rate 0.001", 0.0, 1e-3),
    "annealed": Setting("entropy bonus 0.1, learning rate falling from 0.001", 0.1, 1e-3, "linear"),
}


class Arm(msgspec.Struct, frozen=True):
    """A way to choose opponents."""

    title: str
    sampler: Plugin
    exploiters: bool = False
    """Whether two exploiters are trained beside the main policy, out of the same budget of games."""
    workers: int = 1
    """Of the main policy, where an exploiter has one: so many steps it takes to one of an exploiter's."""
    rated: bool = False
    """Whether the sampler or a population looks at ratings: then training matches are rated."""
    population: bool = False
    """Whether two more members of a population are trained beside the main policy, out of the same budget of games."""
    operator: Plugin | None = None
    """Makes the offspring that replaces the population's weakest member; without one no member is replaced."""
    imitation: bool = False
    """Whether the policy learns from what search would have played, and from nothing else."""
    pairs: int = 0
    """Of a student and a teacher, all trained out of the same budget; the main policy is the first student."""
    replaced: bool = False
    """Whether a student or teacher that earns less than the other is replaced, as the game's configuration has it."""

    @property
    def share(self) -> float:
        """Of the run's steps that the main policy takes, about."""
        if self.pairs:
            return 1 / (2 * self.pairs)
        return self.workers / (self.workers + 2) if self.exploiters or self.population else 1.0


_ALPHASTAR = Plugin("win_rate", {"weighting": "squared", "mirror": 0.35})
_CROSSOVER = Plugin("crossover", {"method": "average", "noise": 0.02})
_MUTATION = Plugin("mutation", {"noise": 0.02})


def _met(policies: Sequence[str]) -> Plugin:
    return Plugin("policies", {"policies": [*policies]})


ARMS = {
    "mirror": Arm("mirror self-play", Plugin("mirror")),
    "lagged": Arm("past selves alike", Plugin("lagged", {"lag_range": [1, UNLIMITED]})),
    "pfsp": Arm("PFSP buckets", Plugin("pfsp"), rated=True),
    "alphastar": Arm("AlphaStar's weights", _ALPHASTAR),
    "league": Arm("league with exploiters", _ALPHASTAR, exploiters=True),
    "lean": Arm("league, exploiters a third of it", _ALPHASTAR, exploiters=True, workers=4),
    "population": Arm("population of three", _ALPHASTAR, rated=True, population=True),
    "crossover": Arm("population, crossovers", _ALPHASTAR, rated=True, population=True, operator=_CROSSOVER),
    "mutation": Arm("population, mutations", _ALPHASTAR, rated=True, population=True, operator=_MUTATION),
    "imitation": Arm("imitation of search", Plugin("mirror"), imitation=True),
    "pair": Arm("one student, one teacher", _met(TEACHERS[:1]), pairs=1),
    "pairs": Arm("two students, two teachers", _met(TEACHERS), pairs=2),
    "replaced": Arm("two and two, the weaker replaced", _met(TEACHERS), pairs=2, replaced=True),
}


BASELINE_ARM = "mirror"
"""That the others are compared with, seed by seed."""


def run_config(bench: GameBenchmark, arm: Arm, seed: int, setting: Setting) -> LeagueConfig:
    """The configuration of one run.

    Args:
        bench: The game.
        arm: Who is met.
        seed: Master seed: of the base model, the first adapter, every deal and every draw.
        setting: Of the learner.

    Raises:
        UsageError: the game has teachers and students and the arm none, or the other way round.
    """
    if (bench.config is None) != (arm.pairs == 0):
        raise UsageError(f"{arm.title}: found {bench.title}; expected teachers and students in both or in neither")
    if bench.config is not None:
        return _populations_config(bench, bench.config, arm, seed, setting)
    return LeagueConfig(
        name="ablation",
        seed=seed,
        game=bench.game,
        agents={"base_model": AgentConfig(kind="base", rating=1000.0, baseline=True)}
        | ({"searcher": AgentConfig(kind="search", search=SEARCH)} if arm.imitation else {}),
        model=ModelConfig(
            shape={**MODEL_SHAPE, "max_positions": bench.positions},
            cloning={"sequences": bench.cloned},
            lora_rank=8,
            lora_alpha=16.0,
        ),
        inference=InferenceConfig(max_adapters=256, max_rows=bench.batch * 2),
        rollout=RolloutConfig(workers=arm.workers, games_in_flight=bench.batch, ahead_steps=1.0),
        matchmaking=MatchmakingConfig(sampler=arm.sampler),
        schedule=CheckpointScheduleConfig(
            recent_every=bench.every, recent_window=UNLIMITED, landmark_every=UNLIMITED, elite=False
        ),
        ratings=RatingsConfig(purposes=("training",) if arm.rated else ("evaluation",)),
        trainer=_trainer_config(bench, arm, setting),
        policies=_other_policies(bench, arm),
        history=HistoryConfig(records="digest"),
        stop=StopConfig(games=bench.games),
    )


def _trainer_config(bench: GameBenchmark, arm: Arm, setting: Setting) -> TrainerConfig:
    by_role = Plugin("leave_one_out", {"by": ["role"]})
    return TrainerConfig(
        policy=MAIN,
        rollouts_per_step=bench.batch,
        reward=Plugin("outcome"),
        # By role alone: opponents of one batch are too many to be compared apart.
        advantage=Plugin("constant", {"value": 0.0}) if arm.imitation else by_role,
        imitation=ImitationConfig(agent="searcher") if arm.imitation else ImitationConfig(),
        loss=Plugin("ppo_clip", {"entropy": setting.entropy}),
        learner={
            "learning_rate": setting.learning_rate,
            "schedule": setting.schedule,
            "weight_decay": 0.0,
            "minibatch_sequences": 8 * bench.batch,
        },
    )


def _other_policies(bench: GameBenchmark, arm: Arm) -> dict[str, PolicyConfig]:
    """Three policies share the games, as a rule alike, and then each has a third of the steps."""
    if arm.population:
        steps = max(bench.steps // 3 // COMPARISONS, 1) if arm.operator else UNLIMITED
        member = PolicyConfig(role="population", reset_steps=steps, reset_operator=arm.operator)
        return {"second": member, "third": member}
    if not arm.exploiters:
        return {}
    steps = max(bench.steps // 3 // bench.resets, 1)
    return {
        "hunter": PolicyConfig(role="main_exploiter", against=MAIN, reset_steps=steps),
        "rogue": PolicyConfig(role="league_exploiter", reset_steps=steps),
    }


def _populations_config(
    bench: GameBenchmark, config: LeagueConfig, arm: Arm, seed: int, setting: Setting
) -> LeagueConfig:
    """As configured; without what the arm has not, and with the run's seed, budget and learner's setting."""
    students, teachers = STUDENTS[: arm.pairs], TEACHERS[: arm.pairs]
    seats = {policy: config.matchmaking.seats[policy] for policy in (*students, *teachers)}
    kept = {
        policy: PolicyConfig(role="main", sampler=_met(students if policy in teachers else teachers))
        for policy in seats
        if policy != MAIN
    }
    replace = msgspec.structs.replace
    return replace(
        config,
        seed=seed,
        model=replace(config.model, cloning={**config.model.cloning, "sequences": bench.cloned}),
        inference=replace(config.inference, max_adapters=256),
        matchmaking=replace(config.matchmaking, sampler=arm.sampler, seats=seats),
        trainer=replace(
            config.trainer,
            loss=Plugin(config.trainer.loss.name, {**config.trainer.loss.settings, "entropy": setting.entropy}),
            learner={**config.trainer.learner, "learning_rate": setting.learning_rate, "schedule": setting.schedule},
        ),
        policies={policy: config.policies[policy] for policy in kept} if arm.replaced else kept,
        history=HistoryConfig(records="digest"),
        stop=StopConfig(games=bench.games),
    )
