"""A language model in a seat: position to prompt, constrained completion, and the way back to an action."""

from collections.abc import Callable

import msgspec

from arena.constraints import read_branches
from arena.games.base import Action, Game, TextFormat
from schemas.errors import ModelError
from schemas.trajectories import Step
from trainer.model.cloning import Example
from trainer.model.tokenizer import Tokenizer
from workers.inference.base import Generation, InferenceBackend, Request, Sampling
from workers.prompting import Prompting, token_walks

__all__ = ["AdapterProvider", "PolicyPlayer", "example", "token_walks"]

AdapterProvider = Callable[[], tuple[int, str | None]]
"""Version and adapter digest to use now (None: the base model); asked at each decision."""


class PolicyPlayer:
    """One seat of one match, played by a model. Every decision is kept as a ``Step``, to be trained on."""

    def __init__(
        self,
        backend: InferenceBackend,
        tokenizer: Tokenizer,
        text: TextFormat,
        provider: AdapterProvider,
        sampling: Sampling,
    ) -> None:
        """Sit down.

        Args:
            backend: Samples completions.
            tokenizer: Of the backend's base model.
            text: The game's language.
            provider: Version and adapter of each decision.
            sampling: Temperature and most tokens; each decision has its own seed.
        """
        self.steps: list[Step] = []
        self._backend = backend
        self._prompting = Prompting(tokenizer, text)
        self._text = text
        self._provider = provider
        self._sampling = sampling

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """Sample a legal action.

        Raises:
            ModelError: the backend refused, or the completion did not come to its end.
        """
        prompt_ids = self._prompting.prompt(game, seat)
        phrases = self._text.completions(game, seat)
        version, adapter = self._provider()
        max_tokens = self._sampling.max_tokens + self._prompting.free_tokens
        sampling = msgspec.structs.replace(self._sampling, seed=seed, max_tokens=max_tokens)
        constraint = self._prompting.constraint(phrases)
        generation = await self._backend.generate(Request(prompt_ids, adapter, constraint, sampling))
        if generation.finish_reason != "stop":
            raise ModelError(
                f"{game.name}: the completion of seat {seat} has not ended after {len(generation.completion_ids)} "
                f"tokens; expected an end within {sampling.max_tokens} and the model's room after the prompt"
            )
        self._record(game, seat, prompt_ids, version, generation)
        return self._prompting.read(game, seat, phrases, generation.completion_ids)

    def _record(self, game: Game, seat: int, prompt_ids: list[int], version: int, generation: Generation) -> None:
        step = Step(
            prompt_ids=prompt_ids,
            completion_ids=generation.completion_ids,
            branches=generation.branches,
            logprobs=generation.logprobs,
            allowed=generation.allowed,
            version=version,
            clock=game.clock,
            progress=game.progress(seat),
            temperature=self._sampling.temperature,
        )
        self.steps.append(step)


def example(tokenizer: Tokenizer, text: TextFormat, game: Game, seat: int, action: Action) -> Example:
    """A decision as a model would have to say it: what behaviour cloning learns from."""
    prompting, phrases = Prompting(tokenizer, text), text.completions(game, seat)
    completion_ids = prompting.write(game, seat, phrases, action)
    branches, allowed = read_branches(prompting.constraint(phrases), completion_ids)
    return Example(prompting.prompt(game, seat), completion_ids, branches, allowed)
