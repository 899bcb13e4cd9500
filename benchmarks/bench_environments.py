"""Environments of other packages through the adapters: failed matches, and throughput beside the bare environment.

Random seats play matches of every environment. Then the same actions are played again, through the adapter and on the
bare package, in turns in the same process: drawing moves is outside both times. Both show the seat to move the same,
its observation and, in OpenSpiel, the names of its legal moves. The last column adds the match's record, which a league
keeps and the bare package does not make. Prints the table of ``docs/18-environments.md``. A package that is not
installed is left out; names as arguments select environments. One file, since both sides of each package have to play
the same turns.
"""

import asyncio
import random
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
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
        *("backgammon", "breakthrough(rows=6,columns=6)", "checkers", "chess", "connect_four", "crazy_eights"),
        *("cribbage", "dark_chess", "euchre", "gin_rummy", "go(board_size=9)", "goofspiel"),
        *("goofspiel(num_cards=4,imp_info=True)", "hearts", "kuhn_poker(players=3)", "leduc_poker", "liars_dice"),
        *("matrix_rps", "oh_hell", "oware", "skat", "spades", "tic_tac_toe"),
    ],
    "textarena": [
        f"{name}-v0-train"
        for name in (
            *("ConnectFour", "IteratedPrisonersDilemma", "KuhnPoker", "Nim", "PigDice", "SimpleTak"),
            *("ThreePlayerGOPS", "TicTacToe"),
        )
    ],
    # In the repository of verifiers, not in its package.
    "verifiers": ["kuhn-poker", "kuhn-poker, its environment alone"],
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


def play_adapter(spec: Any, seed: int, turns: Turns, is_recorded: bool = False) -> None:
    """The same match through the adapter."""
    game, is_listed = spec.new(seed), spec.name == "openspiel"
    for actions in turns:
        if is_listed:
            for seat in actions:
                game.tells(seat)
                game.moves(seat)
        game.apply(actions)
    game.outcome()
    if is_recorded:
        game.record()


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
    """OpenSpiel's own loop: an observation and the names of all legal moves, and chance drawn as in its example.

    The match's chance events are applied in place of the drawn ones, so that its actions stay legal.
    """
    import pyspiel

    game, spiel, observe = spec.new(seed), pyspiel.load_game(spec.settings.game), spec.observe
    for actions in turns:
        game.apply(actions)
    history = game.position.full_history()

    def play() -> None:
        position = spiel.new_initial_state()
        at = 0
        while not position.is_terminal():
            if position.is_simultaneous_node():
                step = [entry.action for entry in history[at : at + position.num_players()]]
                for seat in range(position.num_players()):
                    observe(position, seat)
                    [position.action_to_string(seat, move) for move in position.legal_actions(seat)]
                position.apply_actions(step)
                at += position.num_players()
                continue
            if not position.is_chance_node():
                seat = position.current_player()
                observe(position, seat)
                [position.action_to_string(seat, move) for move in position.legal_actions(seat)]
            else:
                outcomes, probabilities = zip(*position.chance_outcomes(), strict=True)
                np.random.choice(outcomes, p=probabilities)
            position.apply_action(history[at].action)
            at += 1
        position.returns()

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
    bare: Callable[[], None]
    """Plays all of them on the bare package."""
    ours: Callable[[], None]
    """Plays all of them through the adapter."""
    recorded: Callable[[], None] | None = None
    """The same with their records; None where an episode's is made with it."""


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

    def ours(is_recorded: bool = False) -> None:
        for seed, turns in matches:
            play_adapter(spec, seed, turns, is_recorded)

    def bare() -> None:
        for play in played:
            play()

    length = sum(len(turns) for _, turns in matches) / len(matches)
    return Replays(length, failed, bare, ours, partial(ours, is_recorded=True))


def verifiers_replays(taskset: str, is_alone: bool) -> Replays:
    """Episodes of an environment of verifiers, with replies drawn from the moves that it offers.

    ``is_alone``: its environment alone beside ours, with agents that reply at once; else with verifiers' own agents.
    """
    from arena.environments.verifiers import VerifiersSpec

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

    async def play_alone() -> None:
        left = iter(replies)
        for task in spec.tasks:
            await spec.env.run(task, BareAgents(spec, task, left))

    failures = play(improvise)
    print(*failures, sep="\n", end="", file=sys.stderr)
    bare = play_alone if is_alone else partial(play_in_verifiers, taskset, spec.seats, replies)
    return Replays(len(replies) / MATCHES, len(failures), lambda: asyncio.run(bare()), ours)


async def play_in_verifiers(taskset: str, seats: Sequence[str], replies: Sequence[str]) -> None:
    """The same episodes in verifiers, with the quickest of its agents: a model client in this process, no program."""
    import verifiers.v1 as vf
    from verifiers.v1.interception import server
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    left = iter(replies)

    class ReplyingClient(vf.Client):  # type: ignore[misc]
        async def get_response(self, dialect: Any, body: Any, *_: Any, **unused: Any) -> Any:
            message = {"role": "assistant", "content": next(left)}
            raw = {
                **{"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]},
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            }
            response = dialect.parse_response(dialect.validate_response(raw))
            response.raw = raw
            return response

    server.resolve_client = lambda config: ReplyingClient()
    # The harness of environments/league_environments; verifiers' own starts a process at each turn.
    seat = {"harness": {"id": "league_chat"}, "runtime": {"type": "subprocess"}}
    env = load_environment(resolve_env_config({"taskset": {"id": taskset}, **dict.fromkeys(seats, seat)}))
    context = vf.ModelContext("m", vf.EvalClientConfig(base_url="http://127.0.0.1:1/v1", api_key_var="UNSET"))
    async with env.serving():
        for task in islice(env.taskset, MATCHES):
            episode = await env.run_episode(task, context)
            assert episode.ok, episode.errors


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
    if name == "verifiers":
        replays = verifiers_replays(env.partition(",")[0], is_alone="," in env)
    else:
        replays = game_replays(name, env)
    plays = [play for play in (replays.bare, replays.ours, replays.recorded) if play]
    seconds = [float("inf")] * len(plays)
    for _ in range(REPEATS):
        for index, play in enumerate(plays):
            began = time.process_time()
            play()
            seconds[index] = min(seconds[index], time.process_time() - began)
    played = MATCHES - replays.failed
    bare, ours, recorded = [*seconds, seconds[1]][:3]
    more = (ours - bare) / played / replays.turns * 1e6
    row = (name, f"`{env}`", f"{replays.turns:.0f}", MATCHES, replays.failed, f"{played / bare:.0f}")
    figures = f"{played / ours:.0f} | {bare / ours:.2f} | {more:.1f} | {bare / recorded:.2f}"
    return f"| {' | '.join(map(str, row))} | {figures} |"


def main() -> None:
    """Prints the table."""
    warnings.simplefilter("ignore")
    sys.path.append(str(Path(__file__).parents[1] / "environments" / "league_environments"))
    chosen = sys.argv[1:]
    columns = ("package", "environment", "turns", "matches", "failed", "matches/s bare", "here")
    print(f"| {' | '.join((*columns, 'ratio', 'µs a turn more', 'ratio with record'))} |\n|{'---|' * 10}")
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
