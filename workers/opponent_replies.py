"""Replies of opponents that are no models of the server: bots, agents that search, and remote agents.

A remote agent gets the conversation as it is, and answers by its own settings. Others need more than a conversation:

| session's game | what a request must carry | bots |
|---|---|---|
| the league's, an environment of roles | nothing: bots reply to the conversation | all of the league's |
| the league's, a game | ``league_position``: what ``Game.save`` wrote | all of the league's, agents that search too |
| any | ``structured_outputs.choice``: the legal replies | ``random_bot`` |
"""

import contextlib
import itertools
from collections.abc import Sequence
from random import Random

import msgspec

from arena.environments import RANDOM_BOT, ArenaSpec, EnvironmentSpec
from arena.games.texts import SupportsWords, words_of, write_reply
from inference.http_server import RefusedError
from inference.server.openai_types import ChatCompletionRequest, StructuredOutputs, conversation
from league.state.saved_state import EndedSession
from players.prompt_builder import make_prompter
from players.remote.model import resolve_api_key
from players.remote.remote_player import RemoteAgents
from schemas.config import AgentConfig
from schemas.episodes import ModelResponse
from schemas.errors import ConfigError, DecodeError, GameError, format_choices
from schemas.events import SessionOpened
from schemas.ids import derive_seed, digest
from workers.policy_weights import ModelManager, find_searched_version, search_config
from workers.runtime import Context, RemoteUsageRecorder


class OpponentReplies:
    """The bots, the agents that search and the remote agents of a league, asked by chat requests."""

    def __init__(self, context: Context, spec: EnvironmentSpec, models: ModelManager) -> None:
        self._context = context
        self._spec = spec
        self._models = models
        self._remotes = RemoteAgents(context.config.agents, lambda agent: context.state.budget_left(agent))
        self._usage = RemoteUsageRecorder(context, self._remotes)
        self._requests = itertools.count()

    def eligible(self, game: str, position: bool, choices: bool) -> frozenset[str]:
        """Bots, remote agents and agents that search, as far as they can answer the requests of a session.

        ``position`` and ``choices`` are whether the requests carry the position and the legal replies.
        """
        config, spec = self._context.config, self._spec
        is_own = game == config.game.name
        plays = is_own and (isinstance(spec, ArenaSpec) or (position and isinstance(spec, SupportsWords)))

        def can_answer(name: str, agent: AgentConfig) -> bool:
            if agent.remote is not None:
                if choices:
                    return False
                try:
                    resolve_api_key(name, agent.remote)
                except ConfigError:
                    return False
                return True
            if agent.search is not None:
                return plays
            return agent.kind == "bot" and ((plays and name in spec.bots) or (choices and name == RANDOM_BOT))

        return frozenset(name for name, agent in config.agents.items() if can_answer(name, agent))

    async def reply(self, opened: SessionOpened | EndedSession, body: ChatCompletionRequest) -> ModelResponse | None:
        """The opponent's reply; None where it is a model of the server.

        Raises:
            RefusedError: the session has ended (409); or the request has a field that the opponent cannot honour, or
                lacks what a bot needs (400).
            RemoteError: the remote agent's server gave no reply, or its budget is spent.
        """
        agent = self._context.config.agents.get(opened.opponent)
        if agent is None or agent.kind not in ("bot", "remote", "search"):
            return None
        if field := _unsupported_field(agent, body):
            raise RefusedError(
                400,
                f"{field}: {opened.opponent} is a {agent.kind} agent, which writes one text of its own; leave the "
                "field out, or play a model of the league",
                field,
            )
        if isinstance(opened, EndedSession):
            raise RefusedError(
                409, f"session {opened.session!r}: ended at event {opened.sequence}; expected an open one"
            )
        if agent.remote is not None:
            return await self._ask_remote(opened, body)
        try:
            return ModelResponse(await self._ask_bot(opened, body))
        except (DecodeError, GameError) as error:
            raise RefusedError(400, f"league_position, for the {agent.kind} {opened.opponent}: {error}") from error

    async def close(self) -> None:
        """Close the connections to remote agents."""
        await self._remotes.close()

    async def _ask_remote(self, opened: SessionOpened, body: ChatCompletionRequest) -> ModelResponse:
        self._remotes.add_agents(self._context.config.agents)
        # Requests of one session may run side by side, each with its own account.
        request = f"{opened.match_id} {next(self._requests)}"
        client = await self._remotes.make_client(opened.opponent, request)
        try:
            return await client.complete(conversation(body))
        finally:
            await self._usage.append(opened.match_id, self._remotes.finish_match(request))

    async def _ask_bot(self, opened: SessionOpened, body: ChatCompletionRequest) -> str:
        spec = self._spec
        is_own = opened.game == self._context.config.game.name
        choices = body.structured_outputs.choice if body.structured_outputs is not None else None
        if is_own and body.league_position is not None and not isinstance(spec, ArenaSpec):
            return await self._ask_player(opened, body, choices or ())
        if choices and opened.opponent == RANDOM_BOT:
            return Random(self._seed(opened, body, "")).choice(choices)
        if is_own and isinstance(spec, ArenaSpec):
            roles = [role for seat in range(len(spec.seats)) if seat != opened.seat for role in spec.roles_in(seat)]
            role = _only(roles, body.league_role)
            return spec.improvise(role, conversation(body), Random(self._seed(opened, body, role)))
        raise RefusedError(
            400,
            f"session {opened.session!r}: its opponent is {opened.opponent}, and the request carries no "
            "league_position; expected the saved position of the game with every request of the session",
            "league_position",
        )

    async def _ask_player(self, opened: SessionOpened, body: ChatCompletionRequest, choices: Sequence[str]) -> str:
        spec = self._spec
        position = body.league_position
        assert not isinstance(spec, ArenaSpec)
        game = spec.load(position.encode() if isinstance(position, str) else msgspec.json.encode(position))
        moving = {opened.roles[seat]: seat for seat in game.to_move() if seat != opened.seat}
        role = _only(list(moving), body.league_role)
        seat, seed = moving[role], self._seed(opened, body, role)
        search = search_config(self._context.config, opened.opponent)
        if search is None:
            action = spec.bot(opened.opponent).act(game, seat, Random(seed))
        else:
            version = find_searched_version(self._context, search)
            prompter = make_prompter(self._models.tokenizer, spec, self._context.config.prompts)
            with contextlib.ExitStack() as leases:
                if version is not None:
                    await self._models.ensure(version.adapter, leases)
                player = self._models.make_player(opened.opponent, version, prompter, spec)
                action = await player.act(game, seat, seed)
        return write_reply(words_of(spec), game, seat, action, choices)

    def _seed(self, opened: SessionOpened, body: ChatCompletionRequest, role: str) -> int:
        """Randomness that follows from the request, so that one that is repeated has the same reply."""
        seen = digest(msgspec.json.encode([body.league_position, body.messages, body.seed]))
        return derive_seed(self._context.config.seed, "session reply", opened.match_id, role, seen)


def _unsupported_field(agent: AgentConfig, body: ChatCompletionRequest) -> str | None:
    """The first field of a request that the agent cannot honour."""
    form, is_remote = body.structured_outputs, agent.remote is not None
    unsupported = {
        "n": body.n not in (None, 1),
        "allowed_token_ids": body.allowed_token_ids is not None,
        "logprobs": bool(body.logprobs),
        "return_token_ids": bool(body.return_token_ids),
        "response_format": body.response_format is not None and body.response_format.type != "text",
        "structured_outputs": form is not None
        and (is_remote or not form.choice or form != StructuredOutputs(choice=form.choice)),
    }
    return next((field for field, found in unsupported.items() if found), None)


def _only(roles: Sequence[str], named: str) -> str:
    """The role that a request names, or the only one that can reply."""
    if named in roles:
        return named
    if named or len(roles) != 1:
        expected = format_choices(roles) if roles else "a position in which the opponent moves"
        raise RefusedError(400, f"league_role: {named!r}; expected {expected}", "league_role")
    return roles[0]
