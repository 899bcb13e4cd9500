"""Checks of a whole configuration before anything is started, every plugin's own settings included."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from arena.environments import ArenaSpec, EnvironmentSpec, make_environment, reports_progress, rules_in_words
from arena.games.base import Game, GameSpec
from arena.games.texts import Listing, seat_counts, words_of
from inference import backend_config, backend_settings
from inference.chat_template import encode_conversation
from league.matchmaking.roles import sampler_of
from league.ratings.base import make_rating_system
from league.samplers import make_sampler
from lifecycle.model_checks import check_model
from models import BaseShape
from models.adapters import TARGETS, LoraConfig
from models.behaviour_cloning import CloningConfig
from models.tokenizer import Tokenizer
from players.policy import check_writes_text
from players.prompt_builder import check_prompt_names, check_prompts_config, make_prompter
from players.search import check_searchable
from schemas.config import LeagueConfig, PromptsConfig, convert
from schemas.episodes import Message
from schemas.errors import ConfigError, GameError, format_choices
from schemas.events import EVENT_TYPES
from schemas.plugins import add_folders
from schemas.standings import Agent, LivePolicy, Standings
from trainer.advantages.base import ADVANTAGES, UsesCritic
from trainer.backends import BACKENDS, ChecksLeague
from trainer.buffer import STRATEGIES
from trainer.credit import check_transforms, reward_uses_score
from trainer.learner_config import resolve_learner
from trainer.losses import LOSSES
from trainer.operators import OPERATORS
from trainer.rewards import REWARDS
from workers.discover_servers import make_servers_config
from workers.trackers.sinks import SINKS

_GAME_ONLY_KEYS = ("free_tokens", "reduced", "reply", "observation", "extractor", "invalid")
"""Keys of ``[prompts]`` on requesting and parsing moves; episodes define that themselves."""


def check_config(config: LeagueConfig) -> None:
    """Build every plugin once.

    Raises:
        ConfigError: an invalid plugin name or setting, an agent that cannot be played, or a base model in a folder that
            the learner or the inference backend does not compute; the message names the key.
        ModelError: that folder has no readable configuration.
    """
    add_folders(config.plugins)
    contest = make_environment(config.game.name, config.game.settings)
    for plugin in config.ratings.systems:
        make_rating_system(plugin)
    _check_seats(config, contest)
    for policy in config.trained_policies:
        _check_sampler(config, policy)
        if (operator := config.trained_policies[policy].reset_operator) is not None:
            OPERATORS.build(operator)
    REWARDS.build(config.trainer.reward)
    ADVANTAGES.build(config.trainer.advantage)
    LOSSES.build(config.trainer.loss)
    STRATEGIES.build(config.trainer.buffer.strategy)
    check_transforms(config.trainer)
    _check_step_size(config)
    resolve_learner(config)
    convert(config.model.shape, BaseShape, "model.shape")
    convert(config.model.cloning, CloningConfig, "model.cloning")
    _check_backend(config, contest)
    backend_config(config.inference.backend, backend_settings(config))
    _check_colocation(config)
    if (Path(config.model.base) / "config.json").is_file():
        check_model(config, Path(config.model.base))
    make_servers_config(config)
    _check_agents(config, contest)
    for plugin in config.tracker.sinks:
        SINKS.build(plugin)
    sinks = Counter(plugin.name for plugin in config.tracker.sinks)
    if twice := [name for name, count in sinks.items() if count > 1]:
        raise ConfigError(f"tracker.sinks: {twice[0]!r} is listed twice; expected distinct sinks")
    for target in config.tracker.forward:
        _check_known("tracker.forward.types", target.types, EVENT_TYPES, ": no such event")
    _check_reward(config, contest)
    _check_groups(config, contest)
    if isinstance(contest, ArenaSpec):
        _check_episodes(config)
    else:
        check_prompts_config(config.prompts, contest, made=config.model.base == "made")
        _check_known("model.clone_bot", [config.model.clone_bot], contest.bots)
    gatekeepers = set(config.evaluation.gatekeepers) - {"previous_best", "recent"}
    for key, names in ("gatekeepers", gatekeepers), ("benchmark_opponents", config.evaluation.benchmark_opponents):
        _check_known(f"evaluation.{key}", names, config.agents, " is not an agent of this league")


def _check_groups(config: LeagueConfig, contest: EnvironmentSpec) -> None:
    size, batch = config.rollout.group_size, config.trainer.rollouts_per_step
    if size > 1 and isinstance(contest, ArenaSpec):
        raise ConfigError(
            f"rollout.group_size: {size}; expected 1, since {contest.name} makes its own groups (game.settings)"
        )
    if size > 1 and config.trainer.buffer.level == "step":
        raise ConfigError(
            f"rollout.group_size: {size}, but batches of trainer.buffer.level 'step' divide groups; expected 1, or "
            "level = 'episode'"
        )
    if size > batch:
        raise ConfigError(f"rollout.group_size: {size}; expected at most trainer.rollouts_per_step, which is {batch}")


def _check_known(key: str, names: Iterable[str], known: Collection[str], problem: str = "") -> None:
    """Check that the names in a value exist; in the message, ``problem`` follows one that does not."""
    for name in sorted(set(names).difference(known)):
        raise ConfigError(f"{key}: {name!r}{problem}; expected {format_choices(known, name)}")


def _check_seats(config: LeagueConfig, contest: EnvironmentSpec) -> None:
    fewest = min(seats.seats for seats in seat_counts(contest).environments)
    _check_known("matchmaking.seats", config.matchmaking.seats, config.trained_policies)
    for policy, seat in config.matchmaking.seats.items():
        if not 0 <= seat < fewest:
            raise ConfigError(f"matchmaking.seats.{policy}: {seat}; expected 0 to {fewest - 1}, a seat of every match")


def _check_agents(config: LeagueConfig, contest: EnvironmentSpec) -> None:
    samplers = [config.matchmaking.sampler, *(policy.sampler for policy in config.policies.values() if policy.sampler)]
    drawn = {text for sampler in samplers for text in _nested_strings(sampler.settings)}
    for name, agent in config.agents.items():
        if agent.kind == "bot" and name not in contest.bots:
            expected = format_choices(contest.bots, name)
            raise ConfigError(f"agents.{name}: {config.game.name} has no such bot; expected {expected}")
        if agent.search is not None:
            if isinstance(contest, ArenaSpec):
                raise ConfigError(f"agents.{name}.search: {contest.name} has no positions to copy; expected a game")
            try:
                check_searchable(contest, agent.search)
            except ConfigError as error:
                raise ConfigError(f"agents.{name}.{error}") from None
        if agent.remote is None:
            continue
        try:
            rules_in_words(contest)
        except GameError as error:
            raise ConfigError(f"agents.{name}: {error}") from None
        if name in drawn and not agent.remote.training:
            raise ConfigError(
                f"agents.{name}.remote.training: false, but a sampler's settings name the agent; expected true, "
                "or a sampler without it"
            )


def check_tokenizer(tokenizer: Tokenizer, config: LeagueConfig) -> EnvironmentSpec:
    """Check that a base model can be computed and prompted with the league's game or conversations; returns the game.

    A first prompt is written, so that a chat template that fails is rejected here and not by every match.

    Raises:
        ConfigError: the learner or the inference backend does not compute it.
        ModelError: words are missing in its vocabulary, or its chat template rejects a conversation.
    """
    check_model(config, tokenizer.folder)
    contest = make_environment(config.game.name, config.game.settings)
    if isinstance(contest, ArenaSpec):
        check_writes_text(tokenizer)
        encode_conversation(tokenizer, [Message("user", "?")], config.prompts)
    else:
        prompter, opening = make_prompter(tokenizer, contest, config.prompts), contest.new(0)
        for seat in opening.to_move():
            prompter.make_prompt(opening, seat)
            check_reply_tokens(tokenizer, config.prompts, contest, opening, seat)
    return contest


def check_reply_tokens(tokenizer: Tokenizer, prompts: PromptsConfig, spec: GameSpec, opening: Game, seat: int) -> None:
    """Raise ``ConfigError`` for a limit of free replies below the shortest legal answer that the game lists."""
    if prompts.reply != "free":
        return
    words = words_of(spec)
    replies = words.replies(opening, seat) if isinstance(words, Listing) else ()
    answers = [(len(tokenizer.encode_text(reply)) + 1, reply) for reply in replies]
    needed, shortest = min(answers, default=(0, ""))
    if prompts.reply_tokens < needed:
        raise ConfigError(
            f"prompts.reply_tokens: {prompts.reply_tokens}, but the shortest legal answer of {spec.name}, "
            f"{shortest!r}, has {needed} tokens with its end; expected at least {needed}"
        )


def _check_reward(config: LeagueConfig, contest: EnvironmentSpec) -> None:
    """Reject a reward that would be 0 in every match."""
    if not reward_uses_score(config.trainer) and not reports_progress(contest):
        subject = "an episode" if isinstance(contest, ArenaSpec) else f"the game {config.game.name!r}"
        raise ConfigError(
            f"trainer.reward: {config.trainer.reward.name!r} does not look at the score, which is all that {subject} "
            f"tells of what was earned; expected 'outcome'"
        )


def _check_episodes(config: LeagueConfig) -> None:
    for key in _GAME_ONLY_KEYS:
        if (value := getattr(config.prompts, key)) != getattr(PromptsConfig(), key):
            raise ConfigError(f"prompts.{key}: {value!r}, which is for games; expected the default in an arena")
    check_prompt_names(config.prompts)
    if config.episodes.judge:
        _check_known("episodes.judge", [config.episodes.judge], config.agents, " is not an agent of this league")


def _check_backend(config: LeagueConfig, contest: EnvironmentSpec) -> None:
    """Check the learner backend, and that names of linears are those of the native decoder where it trains."""
    backend = BACKENDS.build(config.trainer.backend)
    if isinstance(backend, ChecksLeague):
        prompts = config.prompts
        # Replies then have tokens of the models' own choosing.
        is_free = isinstance(contest, ArenaSpec) or prompts.reply == "free" or bool(prompts.free_tokens)
        backend.check_league(config, is_free)
    if config.model.base == "made" or config.trainer.backend.name == "native":
        LoraConfig(config.model.lora_rank, config.model.lora_alpha, config.model.lora_targets or TARGETS)


def _check_colocation(config: LeagueConfig) -> None:
    """Check that one inference process that can sleep, and one trainer, share one device."""
    inference, trainer = config.inference, config.trainer
    if not inference.colocate:
        return
    ranks = inference.options.get("tensor_parallel_size", 1)
    problem = ""
    if inference.backend != "vllm" and (inference.backend, inference.device) != ("local", "cpu"):
        problem = (
            f"the backend {inference.backend!r} cannot release what it holds on {inference.device!r}; expected 'vllm'"
        )
    elif ranks != 1:
        problem = f"inference.tensor_parallel_size is {ranks}; expected 1, on the one GPU that both share"
    elif inference.device != trainer.device:
        problem = f"inference on {inference.device!r}, the trainer on {trainer.device!r}; expected the same device"
    elif inference.servers != 1 or inference.urls:
        found = f"inference.servers is {inference.servers}, with {len(inference.urls)} urls"
        problem = f"{found}; expected one process beside the trainer"
    elif config.policies or trainer.ranks > 1:
        count = len(config.trained_policies) * trainer.ranks
        problem = f"{count} processes train; expected one, without policies and trainer.ranks"
    elif trainer.backend.name == "tinker" or trainer.backend.settings.get("quantization", "none") != "none":
        expected = "trainer.backend 'native' or 'peft' without quantization"
        problem = f"a base model that this process cannot move; expected {expected}"
    elif isinstance(ADVANTAGES.build(trainer.advantage), UsesCritic):
        problem = "trainer.advantage has a critic, which is used between steps; expected one without"
    if problem:
        raise ConfigError(f"inference.colocate: {problem}")


def _check_step_size(config: LeagueConfig) -> None:
    """A batch has to fit the stream in which its trajectories wait."""
    window, limit = config.trainer.buffer.window(config.trainer.rollouts_per_step), config.experience.max_messages
    if window > limit:
        raise ConfigError(
            f"trainer.rollouts_per_step: {window} trajectories would have to wait for a step; expected at most "
            f"experience.max_messages, {limit}"
        )


def opening_standings(config: LeagueConfig) -> Standings:
    """The standings at the opening of a league."""
    agents = {
        name: Agent(name, a.kind, a.rating, 0, baseline=a.baseline, active=a.is_drawn)
        for name, a in config.agents.items()
    }
    rating = config.agents[config.base_agent].rating
    return Standings(0, agents, {name: LivePolicy(name, 0, None, rating) for name in config.trained_policies}, {})


def _check_sampler(config: LeagueConfig, policy: str) -> None:
    """Draw from the standings at the opening, which shows whether the settings name existing agents."""
    plugin, own = sampler_of(config, policy), f"policies.{policy}.sampler"
    try:
        make_sampler(plugin).distribution(opening_standings(config), policy)
    except ConfigError as error:
        where = own if config.trained_policies[policy].sampler is not None else "matchmaking.sampler"
        raise ConfigError(str(error).replace("matchmaking.sampler", where, 1)) from None
    if plugin.name == "policies":
        _check_known(f"{own}.settings.policies", plugin.settings.get("policies", ()), config.trained_policies)
    if plugin.name == "main_exploiter":
        against = plugin.settings.get("against", "main")
        _check_known(f"{own}.settings.against", [against], config.trained_policies)


def _nested_strings(value: Any) -> Iterator[str]:
    """Yield every string in plain settings, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _nested_strings(part)
