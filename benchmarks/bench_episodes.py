"""The overhead of episodes over their model calls, against a bare loop over the same client.

The client takes 50 ms a call; the bare loop makes the same calls in as many asyncio tasks and keeps nothing. Episodes
build conversations, check and record replies, score, and make a training batch. Prints the share of the ideal rate and
of the bare loop's, and the processor time of a call.
"""

import asyncio
import gc
import os
import selectors
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import uvloop

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes.chat import AlternatingRolesEpisode
from arena.rubrics import Rubric
from benchmarks.sizes import size
from schemas.episodes import EpisodeRequest, EpisodeState, Message, Role
from trainer.advantages.total_reward import GroupRelative

CONCURRENCY, ROUNDS, TURNS = size(256, 8), size(4, 1), 8
LATENCY_S = size(0.05, 0.005)
REPEATS = size(5, 1)
TARGET_SHARE, TARGET_OVERHEAD_MS = 0.9, 0.5
REPLY = "The motion stands, for three reasons that the other side has not answered so far."


class RunTiming(NamedTuple):
    """One run."""

    seconds: float
    processor_s: float
    calls: int

    def calls_per_s(self) -> float:
        """Model calls a second."""
        return self.calls / self.seconds

    def cpu_ms_per_call(self) -> float:
        """Processor time of a call."""
        return 1e3 * self.processor_s / self.calls


class Debate(AlternatingRolesEpisode):
    """Two sides in turn."""

    episode_type = "debate"
    rubric = Rubric([lambda rollout, arena: {"Aff": float(rollout.artifact % 2), "Neg": -float(rollout.artifact % 2)}])

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """The motion."""
        return f"The motion is number {artifact}."

    def get_observation(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:
        """Something private."""
        return f"You have {TURNS - state.turn} turns left."


async def run_bare_loop(client: ScriptedClient, episodes: int) -> int:
    messages = [Message("user", "The motion is number 1.")]
    room = asyncio.Semaphore(CONCURRENCY)

    async def one() -> None:
        async with room:
            for _ in range(TURNS):
                await client.complete(messages)

    await asyncio.gather(*(one() for _ in range(episodes)))
    return episodes * TURNS


async def run_episodes(client: ScriptedClient, episodes: int) -> int:
    requests = [EpisodeRequest("debate", number) for number in range(episodes)]
    results = await make_arena(client).generate_rollouts(requests, CONCURRENCY)
    return sum(len(result.rollout.steps) for result in results)


async def run_arena_step(client: ScriptedClient, episodes: int) -> int:
    return len((await make_arena(client, episodes).step(CONCURRENCY)).records)


class DebateArena(Arena):
    """A batch of debates."""

    episodes_a_step = 0

    def get_batch(self) -> list[EpisodeRequest]:
        """One for each motion."""
        return [EpisodeRequest("debate", number) for number in range(self.episodes_a_step)]


def make_arena(client: ScriptedClient, episodes: int = 0) -> DebateArena:
    arena = DebateArena(client, GroupRelative())
    arena.episodes_a_step = episodes
    arena.add_role(Role("Aff", "Argue for it."))
    arena.add_role(Role("Neg", "Argue against it."))
    arena.add_episode("debate", Debate(("Aff", "Neg"), TURNS))
    return arena


class CpuTimeEventLoop(asyncio.SelectorEventLoop):
    """A loop whose clock is the processor time of its thread; it skips what it would sleep."""

    def __init__(self) -> None:
        self._skipped_s = 0.0
        selector = selectors.DefaultSelector()
        select = selector.select

        def skip(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            self._skipped_s += timeout or 0.0
            return select(0)

        selector.select = skip  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        """Seconds of work and of sleep."""
        return time.thread_time() + self._skipped_s


def time_run(
    run: Callable[[ScriptedClient, int], Awaitable[int]],
    latency_s: float,
    episodes: int,
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> RunTiming:
    # One reply for all, made beforehand: what the client does itself is not what is measured.
    reply = asyncio.run(ScriptedClient(REPLY).complete([Message("user", REPLY)]))
    client = ScriptedClient.from_function(lambda messages: reply, latency_s)
    client.keep_calls = False

    async def main() -> RunTiming:
        clock = asyncio.get_running_loop().time
        began, began_processor = clock(), time.process_time()
        calls = await run(client, episodes)
        return RunTiming(clock() - began, time.process_time() - began_processor, calls)

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


def main() -> None:
    # What was imported is not looked through again: a worker that plays for days would do the same.
    gc.collect()
    gc.freeze()
    episodes = CONCURRENCY * ROUNDS
    ideal = CONCURRENCY / LATENCY_S
    kinds = [(run, loop) for loop in (uvloop.new_event_loop, CpuTimeEventLoop) for run in (run_bare_loop, run_episodes)]
    runs = [[time_run(run, LATENCY_S, episodes, loop) for run, loop in kinds] for _ in range(REPEATS)]
    best = [max(found, key=RunTiming.calls_per_s) for found in zip(*runs, strict=True)]
    at_once = [
        [time_run(run, 0.0, episodes).cpu_ms_per_call() for run in (run_bare_loop, run_episodes, run_arena_step)]
        for _ in range(REPEATS)
    ]
    costs = [min(found) for found in zip(*at_once, strict=True)]
    share, overhead = best[3].calls_per_s() / ideal, costs[2] - costs[0]
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(
        f"{CONCURRENCY} episodes at once, {TURNS} calls of {1e3 * LATENCY_S:.0f} ms each; best of "
        f"{REPEATS}, load {load}"
    )
    print(f"  {'ideal':24} {ideal:7,.0f} calls/s")
    names = ("bare loop, by the clock", "arena, by the clock", "bare loop, own core", "arena, own core")
    for name, took in zip(names, best, strict=True):
        rate, cost = took.calls_per_s(), took.cpu_ms_per_call()
        print(f"  {name:24} {rate:7,.0f} calls/s  {rate / ideal:6.1%}  {cost:.3f} ms of processor a call")
    print("a client that takes no time, processor time a call:")
    print(f"  bare loop {costs[0]:.3f} ms, episodes {costs[1]:.3f} ms, with credit and batch {costs[2]:.3f} ms")
    print(f"share of the ideal rate on a core of its own {share:.1%} (aim: {TARGET_SHARE:.0%})")
    print(f"of the bare loop's rate there {best[3].calls_per_s() / best[2].calls_per_s():.1%}")
    print(f"overhead a call {overhead:.3f} ms (aim: < {TARGET_OVERHEAD_MS})")


if __name__ == "__main__":
    main()
