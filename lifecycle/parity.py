"""Parity of backend and learner: log-probabilities on the same ids, adapter and mask, side by side.

A policy gradient weighs every token by the ratio of the learner's probability to the sampler's. Before any weight has
moved that ratio should be 1; its deviation from 1 is an error in every gradient.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, product
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np

from arena.constraints.token_walk import Constraint, read_choices
from arena.games.base import GameSpec
from inference.base import Generation, InferenceBackend, Request, SamplingParameters
from models.tokenizer import Tokenizer
from players.prompt_builder import make_constrained_prompter
from schemas.errors import ModelError, UsageError, format_choices
from schemas.ids import derive_seed
from schemas.trajectories import ModelCall
from trainer.batch import Floats

PERCENTILES = (0, 1, 50, 99, 100)
_TEMPERATURES = (0.7, 1.0, 1.3)
_TOP_PS = (1.0, 0.9)
_FREE_TOKENS = 24
"""Maximum length of an unconstrained completion, in tokens."""
RecomputeLogprobs = Callable[[Sequence[ModelCall]], tuple[Floats, Floats]]
"""The learner's and the recorded log-probabilities [W] of all choices; see ``trainer.loss_inputs``."""


class ParityTolerance(msgspec.Struct, frozen=True):
    """Largest accepted differences of log-probabilities, in nats; see ``VariantResult``."""

    mean: float
    largest: float


TOLERANCES = {
    "float32": ParityTolerance(1e-5, 1e-5),
    "bfloat16": ParityTolerance(1e-2, 3e-2),
    "float16": ParityTolerance(1e-2, 3e-2),
}
"""Tolerances by the data type of both sides."""


class PromptSample(NamedTuple):
    """A prompt to complete, with its constraint."""

    prompt_ids: list[int]
    constraint: Constraint


class SamplingVariant(msgspec.Struct, frozen=True):
    """One way of sampling."""

    kind: str
    """``constrained`` or ``free``."""
    temperature: float
    top_p: float

    def make_request(self, sample: PromptSample, adapter: str | None, seed: int) -> Request:
        """The request for a prompt."""
        if self.kind == "free":
            sampling = SamplingParameters(self.temperature, seed, _FREE_TOKENS, self.top_p)
            return Request(sample.prompt_ids, adapter, None, sampling)
        sampling = SamplingParameters(self.temperature, seed, top_p=self.top_p)
        return Request(sample.prompt_ids, adapter, sample.constraint, sampling)


VARIANTS = [SamplingVariant(*values) for values in product(("constrained", "free"), _TEMPERATURES, _TOP_PS)]


class VariantResult(msgspec.Struct, frozen=True):
    """Differences found with one sampling variant."""

    way: SamplingVariant
    tokens: int
    """Number of tokens at which the constraint left a choice."""
    mean: float
    """Mean of the absolute differences, in nats; below temperature 1 times the temperature.

    The two sides differ by the rounding of their logits, which sampling divides by the temperature.
    """
    largest: float
    """The largest of them."""
    ratio: list[float]
    """Percentiles (``PERCENTILES``) of the importance ratio, exp(learner - backend)."""
    kept: float
    """Least probability, by the learner, of the set that the backend sampled from; never much under ``top_p``."""
    within: bool
    refused: str = ""
    """The backend's reason for rejecting this kind of sampling; empty if it does not."""


class ParityReport(msgspec.Struct, frozen=True):
    """Result of comparing one backend with the learner."""

    backend: str
    dtype: str
    bounds: ParityTolerance
    adapters: int
    cells: list[VariantResult]

    @property
    def agrees(self) -> bool:
        """Whether all variants are within tolerance."""
        return all(cell.within for cell in self.cells)


def resolve_tolerance(dtype: str) -> ParityTolerance:
    """Tolerance of a data type; UsageError where none is known."""
    if dtype not in TOLERANCES:
        raise UsageError(f"parity: dtype {dtype!r}; expected {format_choices(TOLERANCES)}")
    return TOLERANCES[dtype]


def sample_prompts(game: GameSpec, tokenizer: Tokenizer, bot: str, seed: int) -> Iterator[PromptSample]:
    """Yield the decisions of an endless sequence of games in which a bot plays all seats."""
    player, prompting = game.bot(bot), make_constrained_prompter(tokenizer, game.text())
    for number in count():
        play, rng = game.new(derive_seed(seed, "parity", number)), Random(derive_seed(seed, "parity moves", number))
        while moving := play.to_move():
            for seat in moving:
                question = prompting.make_prompt(play, seat)
                assert question.constraint is not None
                yield PromptSample(question.prompt_ids, question.constraint)
            play.apply({seat: player.act(play, seat, rng) for seat in moving})


async def measure_parity(
    backend: InferenceBackend,
    learners: Mapping[str | None, RecomputeLogprobs],
    vocabulary: int,
    prompts: Sequence[PromptSample],
    bounds: ParityTolerance,
) -> list[VariantResult]:
    """Sample every prompt, constrained and free, at several temperatures and with a nucleus; compare each token.

    The backend has all adapters loaded; ``learners`` recompute log-probabilities with each, by the backend's names,
    which are assigned to the prompts in turn. ``vocabulary`` is the number of token ids.

    Raises:
        ModelError: the backend rejects a required kind of sampling, or its completions leave nothing to compare.
    """
    return [await _measure_variant(backend, learners, vocabulary, prompts, bounds, variant) for variant in VARIANTS]


async def _measure_variant(
    backend: InferenceBackend,
    learners: Mapping[str | None, RecomputeLogprobs],
    vocabulary: int,
    prompts: Sequence[PromptSample],
    bounds: ParityTolerance,
    variant: SamplingVariant,
) -> VariantResult:
    names = list(learners)
    requests = [variant.make_request(sample, names[index % len(names)], index) for index, sample in enumerate(prompts)]
    try:
        generations = await asyncio.gather(*map(backend.generate, requests))
    except ModelError as error:
        if variant.top_p == 1.0:
            raise
        return VariantResult(variant, 0, 0.0, 0.0, [], 1.0, True, refused=str(error))
    sampled = list(zip(requests, generations, strict=True))
    parts = [
        _compare_logprobs(learners[name], vocabulary, [pair for pair in sampled if pair[0].adapter == name])
        for name in names
    ]
    difference_W, kept_W = (np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True))
    if not len(difference_W):
        raise ModelError(f"parity: no {variant.kind} token was sampled at {len(prompts)} places; expected some choice")
    # A difference that is not a number exceeds every bound.
    rounding_W = min(variant.temperature, 1.0) * abs(difference_W)
    mean, largest, kept = float(rounding_W.mean()), float(rounding_W.max()), float(kept_W.min())
    within = mean <= bounds.mean and largest <= bounds.largest and kept >= variant.top_p - bounds.largest
    ratio = np.percentile(np.exp(difference_W), PERCENTILES).tolist()
    return VariantResult(variant, len(difference_W), mean, largest, ratio, kept, within)


def _compare_logprobs(
    recompute: RecomputeLogprobs, vocabulary: int, sampled: Sequence[tuple[Request, Generation]]
) -> tuple[Floats, Floats]:
    """Differences, learner minus backend, of every sampled token, and the probability of the set it was drawn from."""
    if not sampled:
        return np.empty(0, np.float32), np.empty(0, np.float32)
    all_ids = list(range(vocabulary))
    drawn, whole = zip(*(_to_model_calls(*each, all_ids) for each in sampled), strict=True)
    learnt_W, stated_W = recompute(drawn)
    # Per token, its probability among all allowed tokens over that among those it was drawn from.
    return learnt_W - stated_W, np.exp(recompute(whole)[0] - learnt_W)


def _to_model_calls(request: Request, generation: Generation, all_ids: list[int]) -> tuple[ModelCall, ModelCall]:
    """A completion as two model calls: over the backend's sampling sets, and over all allowed tokens.

    A token that the backend reports as forced though the constraint leaves a choice, as where a nucleus holds only one,
    is compared as a claim of probability 1.
    """
    stated = dict(zip(generation.branches, zip(generation.logprobs, generation.allowed, strict=True), strict=True))
    ids = generation.completion_ids
    # The tokens that the constraint alone allows, at each position with a choice.
    open_to = dict.fromkeys(range(len(ids)), all_ids)
    if request.constraint is not None:
        branches, sets = read_choices(request.constraint, ids)
        open_to = {at: tokens or all_ids for at, tokens in zip(branches, sets, strict=True)}
    allowed = {at: stated.get(at, (0.0, [ids[at]])) for at in sorted(stated.keys() | open_to)}
    drawn = ModelCall(
        prompt_ids=list(request.prompt_ids),
        completion_ids=ids,
        branches=list(allowed),
        logprobs=[logprob for logprob, _ in allowed.values()],
        allowed=[tokens or all_ids for _, tokens in allowed.values()],
        version=0,
        clock=0,
        progress=0.0,
        temperature=request.sampling.temperature,
    )
    whole = [open_to.get(at, tokens) for at, (_, tokens) in allowed.items()]
    return drawn, msgspec.structs.replace(drawn, allowed=whole)


def format_summary(parity: ParityReport) -> str:
    """The verdict in a sentence."""
    worst = max((cell.largest for cell in parity.cells), default=math.nan)
    tokens = sum(cell.tokens for cell in parity.cells)
    verdict = "agree" if parity.agrees else "DISAGREE"
    return (
        f"{parity.backend} and the learner {verdict} in {parity.dtype}: {tokens:,} tokens, {parity.adapters} adapters, "
        f"at most {worst:.1e} apart (bound {parity.bounds.largest:g}, mean {parity.bounds.mean:g})"
    )
