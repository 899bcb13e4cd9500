"""Environments of other packages through the adapters: failed matches, and throughput beside the bare environment.

Random seats play matches of every environment. Then the same actions are played again, once through the adapter and
once on the bare package, in turns in the same process: finding random moves is outside both times. Prints the table of
``docs/18-environments.md``. A package that is not installed is left out; names as arguments select environments.
"""

import asyncio
import random
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from arena.clients import ScriptedClient
from arena.environments import ArenaOptions, make_environment
from arena.games import make_game
from arena.games.base import Action
from arena.model_call import Limits
from benchmarks.sizes import size
from schemas.episodes import EpisodeRequest, Message
from schemas.errors import ConfigError, GameError

MATCHES = size(100, 2)
REPEATS = size(3, 1)
LONG = ("pettingzoo classic/chess-v6", "pettingzoo classic/go-v5")
"""Environments that take a second a match: only by name."""

Turns = list[dict[int, Action]]

ENVIRONMENTS: dict[str, Sequence[str]] = {
    "pettingzoo": [
        f"classic/{name}"
        for name in (
            *("chess-v6", "connect_four-v3", "go-v5", "hanabi-v5", "leduc_holdem-v4", "rps-v2"),
            *("texas_holdem-v4", "texas_holdem_no_limit-v6", "tictactoe-v3"),
        )
    ],
    "openspiel": [
        *("breakthrough(rows=6,columns=6)", "connect_four", "goofspiel(num_cards=4,imp_info=True)", "hearts"),
        *("kuhn_poker(players=3)", "leduc_poker", "liars_dice", "matrix_rps", "oware", "tic_tac_toe"),
    ],
    "textarena": [
        f"{name}-v0-train"
        for name in (
            *("ConnectFour", "IteratedPrisonersDilemma", "KuhnPoker", "Nim", "PigDice", "SimpleTak"),
            *("ThreePlayerGOPS", "TicTacToe"),
        )
    ],
    # In the repository of verifiers, not in its package.
    "verifiers": ["kuhn-poker"],
}
SETTINGS = {"pettingzoo": "env", "openspiel": "game", "textarena": "env", "verifiers": "taskset"}


def random_turns(spec: Any, seed: int) -> Turns:
    """The actions of random seats, to the end."""
    game, rng, turns = spec.new(seed), Random(seed), []
    while moving := game.to_move():
        turns.append({seat: game.random_action(seat, rng) for seat in moving})
        game.apply(turns[-1])
    game.outcome()
    return turns


def play_adapter(spec: Any, seed: int, turns: Turns) -> None:
    """The same match through the adapter."""
    game = spec.new(seed)
    for actions in turns:
        game.apply(actions)
    game.outcome()


def numbers(spec: Any, seed: int, turns: Turns) -> list[dict[int, int]]:
    """The action numbers of a match, which the packages take."""
    game = spec.new(seed)
    for actions in turns:
        game.apply(actions)
    return [{int(seat): number for seat, number in turn.items()} for turn in game.state.turns]


def bare_pettingzoo(spec: Any, seed: int, turns: Turns) -> Callable[[], None]:
    """PettingZoo's own loop."""
    import pettingzoo

    taken, env_id = numbers(spec, seed, turns), spec.settings.env

    def simultaneous() -> None:
        env = pettingzoo.make("parallel", env_id)
        env.reset(seed=seed)
        for actions in taken:
            env.step({env.possible_agents[seat]: number for seat, number in actions.items()})

    def in_turn() -> None:
        env, left = pettingzoo.make("aec", env_id), iter(taken)
        env.reset(seed=seed)
        for _ in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            env.step(None if terminated or truncated else next(iter(next(left).values())))

    return simultaneous if env_id in pettingzoo.parallel_registry else in_turn


def bare_openspiel(spec: Any, seed: int, turns: Turns) -> Callable[[], None]:
    """OpenSpiel's own loop: each turn lists the legal moves and their names, and chance is drawn as in its example.

    The match's chance events are applied in place of the drawn ones, so that its actions stay legal.
    """
    import pyspiel

    game = spec.new(seed)
    for actions in turns:
        game.apply(actions)
    history = game.position.full_history()

    def play() -> None:
        position = pyspiel.load_game(spec.settings.game).new_initial_state()
        at = 0
        while not position.is_terminal():
            if position.is_simultaneous_node():
                step = [entry.action for entry in history[at : at + position.num_players()]]
                for seat in range(position.num_players()):
                    [position.action_to_string(seat, move) for move in position.legal_actions(seat)]
                position.apply_actions(step)
                at += position.num_players()
                continue
            if not position.is_chance_node():
                seat = position.current_player()
                [position.action_to_string(seat, move) for move in position.legal_actions(seat)]
            else:
                outcomes, probabilities = zip(*position.chance_outcomes(), strict=True)
                np.random.choice(outcomes, p=probabilities)
            position.apply_action(history[at].action)
            at += 1

    return play


def bare_textarena(spec: Any, seed: int, turns: Turns) -> Callable[[], None]:
    """TextArena's own loop."""
    import textarena

    said = [action[0] for actions in turns for action in actions.values()]

    def play() -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        env = textarena.make(spec.settings.env)
        env.reset(num_players=len(spec.seats), seed=seed)
        for message in said:
            env.get_observation()
            if env.step(action=message)[0]:
                break
        env.close()

    return play


BARE = {"pettingzoo": bare_pettingzoo, "openspiel": bare_openspiel, "textarena": bare_textarena}


class Replays(NamedTuple):
    """Matches of random seats, to be played again."""

    turns: float
    """Mean of a match."""
    failed: int
    ours: Callable[[], None]
    """Plays all of them through the adapter."""
    bare: Callable[[], None]
    """Plays all of them on the bare package."""


def game_replays(name: str, env: str) -> Replays:
    """Matches of a game."""
    spec = make_game(name, {SETTINGS[name]: env})
    matches, failed = [], 0
    for seed in range(MATCHES):
        try:
            matches.append((seed, random_turns(spec, seed)))
        except GameError as error:
            failed += 1
            print(f"{name} {env}, seed {seed}: {error}", file=sys.stderr)
    played = [BARE[name](spec, seed, turns) for seed, turns in matches]

    def ours() -> None:
        for seed, turns in matches:
            play_adapter(spec, seed, turns)

    def bare() -> None:
        for play in played:
            play()

    return Replays(sum(len(turns) for _, turns in matches) / len(matches), failed, ours, bare)


def verifiers_replays(taskset: str) -> Replays:
    """Episodes of an environment of verifiers, with replies drawn from the moves that it offers."""
    from arena.environments.verifiers.adapter import VerifiersSpec

    spec = VerifiersSpec.of({"taskset": taskset, "tasks": MATCHES})
    rng, requests = Random(1), [EpisodeRequest("verifiers", {"index": index}) for index in range(MATCHES)]
    replies: list[str] = []

    def play(reply: Callable[[Sequence[Message]], str]) -> list[str]:
        """Failures of all episodes, one after the other."""
        client = ScriptedClient.from_function(reply)
        client.keep_calls = False
        arena = spec.open(client, ArenaOptions(limits=Limits(needs_tokens=False)))
        results = asyncio.run(arena.generate_rollouts(requests, concurrency=1))
        return [result.rollout.failure for result in results if result.rollout.failure]

    def improvise(messages: Sequence[Message]) -> str:
        replies.append(spec.improvise(None, messages, rng))
        return replies[-1]

    def ours() -> None:
        left = iter(replies)
        play(lambda _: next(left))

    async def play_bare() -> None:
        left = iter(replies)
        for task in spec.tasks:
            await spec.env.run(task, BareAgents(spec, task, left))

    failures = play(improvise)
    print(*failures, sep="\n", end="", file=sys.stderr)
    return Replays(len(replies) / MATCHES, len(failures), ours, lambda: asyncio.run(play_bare()))


class BareAgents:
    """Agents of verifiers that reply at once; each conversation is a trace of its messages, scored by its task."""

    def __init__(self, spec: Any, task: Any, replies: Iterator[str]) -> None:
        import verifiers.v1 as vf

        info = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        agent = vf.AgentInfo(config=vf.AgentConfig(), name="agent")

        @asynccontextmanager
        async def interaction(task: Any) -> AsyncIterator[Any]:
            trace = vf.Trace(task=info, agent=agent, state=vf.State())

            async def turn(message: str) -> Any:
                reply = vf.AssistantMessage(content=next(replies))
                for each in (vf.UserMessage(content=message), reply):
                    parent = len(trace.nodes) - 1 if trace.nodes else None
                    trace.nodes.append(vf.MessageNode(parent=parent, message=each, sampled=each is reply))
                return vf.Segment(messages=[reply], root_reply=reply.content)

            yield SimpleNamespace(turn=turn, trace=trace)
            await task.score(trace)

        for seat in spec.seats:
            setattr(self, seat, SimpleNamespace(interaction=interaction))


def measure(name: str, env: str) -> str:
    """One row of the table."""
    replays = verifiers_replays(env) if name == "verifiers" else game_replays(name, env)
    seconds: dict[Callable[[], None], list[float]] = {replays.ours: [], replays.bare: []}
    for _ in range(REPEATS):
        for play, took in seconds.items():
            began = time.process_time()
            play()
            took.append(time.process_time() - began)
    played = MATCHES - replays.failed
    ours, theirs = (played / min(took) for took in seconds.values())
    more = (1 / ours - 1 / theirs) / replays.turns * 1e6
    row = (name, f"`{env}`", f"{replays.turns:.0f}", MATCHES, replays.failed)
    return f"| {' | '.join(map(str, row))} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} | {more:.0f} |"


def main() -> None:
    """Prints the table."""
    warnings.simplefilter("ignore")
    chosen = sys.argv[1:]
    print("| package | environment | turns | matches | failed | matches/s here | bare | ratio | µs a turn more |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, environments in ENVIRONMENTS.items():
        try:
            make_environment(name, {SETTINGS[name]: environments[0]})
        except ConfigError as error:
            print(error, file=sys.stderr)
            continue
        for env in environments[: size(len(environments), 1)]:
            label = f"{name} {env}"
            if any(part in label for part in chosen) if chosen else label not in LONG:
                print(measure(name, env), flush=True)


if __name__ == "__main__":
    main()
