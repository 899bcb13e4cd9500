"""Behaviour cloning of scripted bots, by cross-entropy over prompt and completion.

All parameters are trained. The loss has two parts: the tokens of prompt and completion among the whole vocabulary,
which teaches what positions look like, and the bot's choices among the allowed tokens, which are what is sampled from
later. The first alone makes play worse before it makes it better: it shifts the odds between allowed tokens.
The budget counts sequences, so equal examples give an equal model (on one thread of a CPU).

Shape suffixes: B sequence of a rectangle, L position in it, T token that is predicted, D model width, V vocabulary,
N allowed token of all choices, W choice.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from models.adamw import AdamW
from models.decoder import Decoder, allowed_distribution, allowed_logits
from models.forward import forward_rectangle, padded_rectangles
from models.make import write_weights
from schemas.errors import ModelError


class Example(msgspec.Struct, frozen=True):
    """One decision of a bot. B is the number of choices: positions where more than one token was allowed."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    branches: Sequence[int]
    """B positions in ``completion_ids``."""
    allowed: Sequence[Sequence[int]]
    """B ascending lists of allowed tokens; or B empty ones, where every token is allowed."""


class CloningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of behaviour cloning."""

    sequences: int = 35_000
    """Number of training examples; an iterator that ends sooner ends the training."""
    batch: int = 64
    """Sequences per optimiser update."""
    learning_rate: float = 3e-3
    """Peak learning rate, after the warm-up; falls to 0 along half a cosine."""
    warmup: float = 0.02
    """Share of the updates during which the learning rate rises."""
    weight_decay: float = 0.01
    branch_weight: float = 1.0
    """Weight of the choices' loss, per choice, relative to the text's, per token."""
    grad_clip: float = 1.0
    rectangle_tokens: int = 4096
    """Tokens per forward pass, padding included."""
    threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Threads that compute on a CPU. Small models gain little by a second one, and threads that wait for each other
    lose most of their time where another process has a core."""


class CloningProgress(msgspec.Struct, frozen=True):
    """Progress of the training."""

    sequences: int
    """Number of examples trained on so far."""
    total: int
    tokens: int
    seconds: float
    """Seconds since the start, including those spent on making the examples."""
    loss: float
    """Cross-entropy of the newest updates' tokens, nats per token, prompts included."""
    branch_loss: float
    """Cross-entropy of the bot's choices among the allowed tokens, nats per choice."""
    uniform_loss: float
    """Cross-entropy of a uniform guess among the allowed tokens."""

    @property
    def rate(self) -> float:
        """Sequences per second."""
        return self.sequences / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Seconds to the end at the rate so far."""
        return (self.total - self.sequences) / max(self.rate, 1e-9)


ProgressCallback = Callable[[CloningProgress], None]


def clone_behaviour(
    folder: Path,
    examples: Iterable[Example],
    config: CloningConfig | None = None,
    report: ProgressCallback | None = None,
) -> CloningProgress:
    """Train the model in ``folder``, as ``make_base`` writes it, and write it back; returns the final progress.

    The examples, in a deterministic order, are consumed as needed. ``report`` is called about every second, and at the
    end.

    Raises:
        ModelError: not a model directory, no examples, or the loss is no longer finite (nothing is written then).
    """
    config = config or CloningConfig()
    decoder = Decoder.load(folder).requires_grad_(True)
    lesson = _CloningRun(decoder, config)
    reported, limited = time.monotonic(), islice(examples, config.sequences)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        while batch := list(islice(limited, config.batch)):
            lesson.update(batch)
            if report is not None and time.monotonic() - reported > 1:
                report(lesson.progress())
                reported = time.monotonic()
    finally:
        torch.set_num_threads(threads)
    last = lesson.progress()
    if not last.sequences:
        raise ModelError(f"{folder}: no examples to learn from")
    write_weights(decoder, folder)
    if report is not None:
        report(last)
    return last


class _CloningRun:
    """Optimiser, schedule and tallies."""

    def __init__(self, decoder: Decoder, config: CloningConfig) -> None:
        self._decoder = decoder
        self._config = config
        matrices = [p for p in decoder.parameters() if p.dim() == 2]
        others = [p for p in decoder.parameters() if p.dim() != 2]
        self._optimiser = AdamW(
            matrices, config.learning_rate, config.weight_decay, undecayed=others, betas=(0.9, 0.98), foreach=True
        )
        self._updates = 0
        self._planned = math.ceil(config.sequences / config.batch)
        self._started = time.monotonic()
        self._sequences = self._tokens = 0
        self._recent: list[tuple[float, float, float]] = []

    def update(self, batch: Sequence[Example]) -> None:
        rising = min(1.0, (self._updates + 1) / (self._config.warmup * self._planned + 1))
        falling = 0.5 * (1 + math.cos(math.pi * (self._updates / self._planned)))
        for group in self._optimiser.param_groups:
            group["lr"] = self._config.learning_rate * rising * falling
        lengths = [len(e.prompt_ids) + len(e.completion_ids) for e in batch]
        tokens = sum(lengths) - len(batch)
        branches = max(sum(len(e.branches) for e in batch), 1)
        sums = np.zeros(3)
        for sequences_B in padded_rectangles(lengths, self._config.rectangle_tokens):
            sums += self._accumulate([batch[index] for index in sequences_B], tokens, branches)
        if not math.isfinite(sums[0]):
            raise ModelError(f"cloning: the loss of update {self._updates} is {sums[0]}; expected a finite number")
        torch.nn.utils.clip_grad_norm_(self._decoder.parameters(), self._config.grad_clip)
        self._optimiser.step()
        self._optimiser.zero_grad()
        self._recent = [*self._recent[-49:], (sums[0] / tokens, sums[1] / branches, sums[2] / branches)]
        self._updates += 1
        self._sequences += len(batch)
        self._tokens += tokens + len(batch)

    def progress(self) -> CloningProgress:
        means = np.mean(self._recent or [(math.nan,) * 3], axis=0).tolist()
        seconds = time.monotonic() - self._started
        return CloningProgress(self._sequences, self._config.sequences, self._tokens, seconds, *means)

    def _accumulate(self, rows: Sequence[Example], tokens: int, branches: int) -> NDArray[np.float64]:
        """Add one rectangle's gradient; return its summed losses of tokens, of choices, and of uniform guesses."""
        ids_BL, real_BL = _pad(rows)
        hidden_BLD = forward_rectangle(self._decoder.weights(), ids_BL[:, :-1])
        logits_TV = self._decoder.logits(hidden_BLD[real_BL[:, 1:]])
        text_T = F.cross_entropy(logits_TV, ids_BL[:, 1:][real_BL[:, 1:]], reduction="none")
        text = text_T.sum()
        choices, guessing = _choices_loss(self._decoder, rows, hidden_BLD)
        # Positions at which every token is allowed.
        free_BL = torch.zeros(real_BL.shape, dtype=torch.bool)
        for row, example in enumerate(rows):
            chosen = zip(example.branches, example.allowed, strict=True)
            free_BL[row, [len(example.prompt_ids) + branch for branch, allowed in chosen if not len(allowed)]] = True
        free_T = free_BL[:, 1:][real_BL[:, 1:]]
        choices = choices + text_T[free_T].sum()
        guessing += int(free_T.sum()) * math.log(logits_TV.shape[1])
        loss = text / tokens + self._config.branch_weight * choices / branches
        loss.backward()  # type: ignore[no-untyped-call]
        return np.array([text.item(), choices.item(), guessing])


def _pad(rows: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Token ids [B, L], right-padded with 0, and a mask of the real ones."""
    texts = [torch.tensor([*row.prompt_ids, *row.completion_ids]) for row in rows]
    ids_BL = pad_sequence(texts, batch_first=True)
    lengths_B1 = torch.tensor([[len(text)] for text in texts])
    return ids_BL, torch.arange(ids_BL.shape[1]) < lengths_B1


def _choices_loss(decoder: Decoder, rows: Sequence[Example], hidden_BLD: Tensor) -> tuple[Tensor, float]:
    """Summed cross-entropy of the choices among the allowed tokens, and of uniform guesses."""
    constrained = [
        (b, len(row.prompt_ids) - 1 + branch, row.completion_ids[branch], tokens)
        for b, row in enumerate(rows)
        for branch, tokens in zip(row.branches, row.allowed, strict=True)
        if len(tokens)
    ]
    if not constrained:
        return hidden_BLD.new_zeros(()), 0.0
    *where, allowed = zip(*constrained, strict=True)
    b_W, l_W, chosen_W = map(torch.tensor, where)
    counts = np.fromiter(map(len, allowed), np.int64)
    row_N = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    token_N = torch.tensor([token for tokens in allowed for token in tokens])
    head_VD = decoder.embed if decoder.head is None else decoder.head
    logits_N = allowed_logits(head_VD, hidden_BLD[b_W, l_W], row_N, token_N)
    place_W = (token_N == chosen_W[row_N]).nonzero().squeeze(1)
    logprob_W, _ = allowed_distribution(logits_N, row_N, place_W, torch.ones(len(counts)))
    return -logprob_W.sum(), float(np.log(counts).sum())
