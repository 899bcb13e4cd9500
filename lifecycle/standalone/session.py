"""An arena in one process, without a broker: played step by step, displayed, and trained on where a model is local."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from arena.arena import Arena
from arena.clients import InferenceClient
from arena.environments import ArenaOptions, make_arena
from arena.model_call import JUDGE, Limits, RoleClients
from league.queries.terminal import Console
from lifecycle.standalone import SAME_MODEL, ArenaRunOptions, resolve_credit_assigner
from players.remote.openai_client import HOSTED_MODEL, OpenAIClient
from schemas.batches import BatchCounts
from schemas.codec import canonical_json
from schemas.errors import EpisodeError, ModelError
from schemas.ids import digest
from trainer.advantages.total_reward import CREDIT_ASSIGNERS
from workers.logs import VerboseLogger
from workers.progress import show_progress

if TYPE_CHECKING:  # torch is slow to import
    from lifecycle.standalone.trainee import TrainablePolicy

_LOCAL_CONCURRENCY, _REMOTE_CONCURRENCY = 64, 8
"""Concurrent episodes: a model in this process is called in batches, a server has limits."""


class ArenaClients(msgspec.Struct, frozen=True):
    """The default client, and the clients of particular roles."""

    client: InferenceClient
    cast: RoleClients
    concurrency: int
    trainee: "TrainablePolicy | None" = None
    """The model in this process, if there is one."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled so far; 0 with servers, not all of which report them."""
        return 0 if self.trainee is None else self.trainee.sampled_tokens


@asynccontextmanager
async def _open_clients(options: ArenaRunOptions) -> AsyncIterator[ArenaClients]:
    if options.where != "here":

        def connect(model: str) -> OpenAIClient:
            if options.where == "local":
                return OpenAIClient.for_local(options.port, model=model)
            return OpenAIClient.for_openrouter(model=model or HOSTED_MODEL)

        client = connect(options.model)
        judge = None if options.judge in ("", SAME_MODEL) else connect(options.judge)
        try:
            cast: RoleClients = {} if judge is None else {JUDGE: judge}
            yield ArenaClients(client, cast, options.concurrency or _REMOTE_CONCURRENCY)
        finally:
            await client.close()
            if judge is not None:
                await judge.close()
        return
    from lifecycle.standalone.trainee import TrainablePolicy

    config = options.config
    if options.model:
        config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, base=options.model))
    trainee = TrainablePolicy(_resolve_base_model(options), config, options.seed, options.is_training)
    try:
        cast = {} if options.judge == SAME_MODEL else {JUDGE: trainee.base_client}
        yield ArenaClients(trainee.client, cast, options.concurrency or _LOCAL_CONCURRENCY, trainee)
    finally:
        await trainee.close()


def _resolve_base_model(options: ArenaRunOptions) -> Path:
    """Locate the base model's folder; a made model is made once."""
    config = options.config
    if options.model or config.model.base != "made":
        from models import load_base

        try:
            return load_base(options.model or config.model.base).folder
        except ModelError as error:
            raise ModelError(f"{error}; for a model of a service add --hosted, of a server here --local") from None
    # Without the settings that only determine how much is played.
    spec = make_arena(config.game.name, config.game.settings)
    played = {key: value for key, value in config.game.settings.items() if key not in (spec.batch, spec.attempts)}
    config = msgspec.structs.replace(config, game=msgspec.structs.replace(config.game, settings=played))
    made_of = canonical_json([config.game, config.model, config.prompts, config.seed])
    folder = options.run / "arenas" / f"{config.game.name}-{digest(made_of)[:12]}"
    if not (folder / "config.json").exists():
        from lifecycle.league_models import make_base_model

        with show_progress(Console(stderr=True), f"making a model for {config.game.name} in {folder}") as report:
            make_base_model(folder, config, report)
    return folder


class ArenaStepReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a step, as ``--json`` prints it."""

    step: int
    """Number of the step, from 0."""
    of: int
    policy_version: int
    counts: BatchCounts
    rewards: dict[str, float]
    """Mean reward by ``episode type/role``."""
    failures: dict[str, str]
    """Failure reason by rollout id."""
    training: dict[str, float] = {}
    """Metrics of ``trainer.report.StepReport``; empty without training."""
    skipped: str = ""
    """Reason for which the weights were not changed; empty if they were."""
    tokens_per_s: float = 0.0
    """Sampled tokens over the time of playing; 0 where a server does not report them."""
    seconds: float = 0.0
    """Duration of the step, training included."""
    left_s: float = 0.0
    """Estimated time to the end of the last step."""


def format_step(step: ArenaStepReport) -> Iterator[str]:
    """Format a step for people: rewards, trainable trajectories, training metrics, rate, time left and failures."""
    rewards = ", ".join(f"{name} {value:+.3f}" for name, value in step.rewards.items()) or "no rewards"
    counts = ", ".join(f"{name} {count}" for name, count in msgspec.structs.asdict(step.counts).items() if count)
    measured = ("loss", "entropy", "kl", "grad_norm")
    training = ", ".join(f"{name} {step.training[name]:.4g}" for name in measured if name in step.training)
    tokens = f"{step.tokens_per_s:,.0f} tokens/s, " if step.tokens_per_s else ""
    rate = f"{tokens}{step.seconds:.1f} s, {step.left_s:.0f} s left"
    parts = [rewards, counts, f"not trained: {step.skipped}" if step.skipped else training, rate]
    yield f"step {step.step + 1}/{step.of}: " + " · ".join(part for part in parts if part)
    yield from (f"  failed {id}: {reason}" for id, reason in step.failures.items())


async def run_arena(options: ArenaRunOptions, on_step: Callable[[ArenaStepReport], None]) -> None:
    """Play an arena, train on each step where requested, and report each step.

    Raises:
        EpisodeError: every episode of a step failed before anything was trained.
    """
    spec = make_arena(options.config.game.name, options.config.game.settings)
    credit = CREDIT_ASSIGNERS.build(resolve_credit_assigner(options.config))
    async with _open_clients(options) as clients:
        await clients.client.get_policy_version()
        config = options.config.episodes
        limits = Limits(config.reply_chars, config.calls, config.episode_s, needs_tokens=False, empty=config.empty)
        arena = spec.open(clients.client, ArenaOptions(spec.name, options.seed, limits, credit))
        arena.role_clients = clients.cast
        try:
            with ExitStack() as stack:
                if options.log is not None or options.verbose:
                    arena.observer = stack.enter_context(VerboseLogger(options.log, options.verbose))
                await _run_steps(options, arena, clients, on_step)
        finally:
            if options.save is not None and clients.trainee is not None:
                clients.trainee.save(options.save)


async def _run_steps(
    options: ArenaRunOptions, arena: Arena, clients: ArenaClients, on_step: Callable[[ArenaStepReport], None]
) -> None:
    started_at = last_at = time.monotonic()
    trained = False
    tokens = 0
    async with aclosing(arena.run(options.steps, clients.concurrency, options.examples)) as batches:
        async for batch in batches:
            rate = (clients.sampled_tokens - tokens) / max(time.monotonic() - last_at, 1e-9)
            tokens = clients.sampled_tokens
            report = None
            if options.is_training and clients.trainee is not None:
                report = await clients.trainee.train(batch, batch.step / options.steps)
                trained = trained or not report.skipped
            now, done = time.monotonic(), batch.step + 1
            step = ArenaStepReport(
                step=batch.step,
                of=options.steps,
                policy_version=batch.policy_version,
                counts=batch.counts,
                rewards=batch.rewards,
                failures=batch.failures,
                training={} if report is None else report.metrics(),
                skipped="" if report is None else report.skipped,
                tokens_per_s=round(rate, 1),
                seconds=round(now - last_at, 3),
                left_s=round((now - started_at) / done * (options.steps - done), 1),
            )
            last_at = now
            on_step(step)
            # A trained model may recover from failed episodes; an untrained one would only repeat them.
            if batch.counts.failed == batch.counts.episodes and not trained:
                reason = next(iter(batch.failures.values()), "no reason is known")
                raise EpisodeError(f"every episode of step {batch.step + 1} failed, first: {reason}")
