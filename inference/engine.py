"""Rounds of continuous batching: waiting rows join, every running row gets its next token, finished rows leave.

Tensors may be computed in another thread, so that the event loop runs on while a large model computes; rows are changed
in the event loop alone. Rows occupy consecutive cache slots: new ones are added behind the running ones, and the last
ones move into the slots of finished ones, so that no work is done for a finished row.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from itertools import takewhile
from typing import TypeVar

import msgspec
import torch
from torch import Tensor

from inference.base import BackendStats, is_out_of_memory
from inference.batch_layout import LayoutPlanner
from inference.forward import ForwardPass
from inference.kv_cache import BLOCK_TOKENS, BlockKey, KvCache, PrefixCache
from inference.sampler import SampledTokens, sample_tokens
from inference.sequence import ActiveSequence
from inference.statistics import Counters
from models.forward import Weights
from schemas.errors import EngineError, MemoryShortError
from schemas.loggers import get_logger

log = get_logger()

Result = TypeVar("Result")

MAX_WAIT_ROUNDS = 4
"""Rounds after which waiting rows join, however few."""


class Engine:
    """The batch of one base model."""

    def __init__(
        self,
        base: Weights,
        max_rows: int,
        max_prefill_tokens: int,
        join_share: float,
        reuse_tokens: int,
        cache_bytes: int = 0,
        executor: Executor | None = None,
    ) -> None:
        """An empty batch of the base model; adapters come with the rows. Bounds as in ``LocalConfig``.

        Passes are computed by ``executor``, or in the event loop without one.
        """
        self.counters = Counters()
        self._executor = executor
        self._base = base
        self._cache = KvCache(base.shape, max_rows, base.embed_VD.device, base.embed_VD.dtype, cache_bytes)
        self._forward = ForwardPass(base, self._cache)
        self._layouts = LayoutPlanner(self._cache)
        self._prefixes = PrefixCache(self._cache, reuse_tokens)
        self._max_rows = max_rows
        self._max_prefill_tokens = max_prefill_tokens
        self._join_share = join_share
        self._waiting: deque[ActiveSequence] = deque()
        self._running: list[ActiveSequence] = []  # a row's index is its cache slot

    def submit(self, row: ActiveSequence) -> None:
        """Queue a row, or finish it where no choice is left."""
        self.counters.prompt_tokens += row.prompt_tokens
        if row.finished:
            self._finish(row)
        else:
            self._waiting.append(row)

    @property
    def has_work(self) -> bool:
        """Whether a round has anything to do."""
        return bool(self._waiting or self._running)

    async def run_round(self) -> None:
        """Admit waiting rows, then sample one token for every running row."""
        started = time.perf_counter()
        running = len(self._running)
        try:
            async with contextlib.aclosing(self._admit_batches()) as batches:
                async for batch in batches:
                    first = len(self._running)
                    self._running += batch
                    await self._advance_safely(first, len(self._running), joining=True)
            if running:
                await self._advance_safely(0, running)
            self._remove_finished()
        except MemoryShortError as error:
            self._shrink_batch(error)
        self.counters.seconds += time.perf_counter() - started

    def _shrink_batch(self, error: MemoryShortError) -> None:
        """Run half as many rows from now on; their prefills are repeated."""
        again: list[ActiveSequence] = []
        for row in self._running:
            if row.finished or row.future.done():
                self._finish(row)
            else:
                again.append(row)
        # Deliberately cautious: memory that was short once would be short again with as many rows.
        self._max_rows = max(len(again) // 2, 1)
        log.warning("memory for fewer rows", rows=self._max_rows, reason=str(error))
        for row in again:
            row.restart_prefill()
            row.waited = MAX_WAIT_ROUNDS
        self._running.clear()
        self._waiting.extendleft(reversed(again))
        self.release()
        if self._base.embed_VD.is_cuda:
            torch.cuda.empty_cache()

    def stats(self, adapters: int, swaps: int) -> BackendStats:
        """Load and totals; the caller knows the number of adapters and swaps."""
        return BackendStats(
            queued=len(self._waiting),
            running=len(self._running),
            adapters=adapters,
            slots=0,
            swaps=swaps,
            cache_bytes=self._cache.bytes + self._prefixes.bytes,
            **msgspec.structs.asdict(self.counters),
        )

    def abort(self, error: Exception) -> None:
        """Fail everything, waiting or running."""
        for row in (*self._waiting, *self._running):
            fail_sequence(row, EngineError(f"inference: the engine stopped: {error!r}"))
        self._waiting.clear()
        self._running.clear()

    def release(self) -> None:
        """Free the caches' memory; only while no row runs."""
        assert not self._running
        self._cache.release()
        self._prefixes.clear()

    async def _admit_batches(self) -> AsyncGenerator[list[ActiveSequence], None]:
        """The rows that join now, in order of arrival, in batches that fit into one pass."""
        free = self._max_rows - len(self._running)
        for row in self._waiting:
            row.waited += 1
        if not self._waiting or free <= 0:
            return
        enough = max(1, int(self._join_share * len(self._running)))
        if len(self._waiting) < enough and self._waiting[0].waited <= MAX_WAIT_ROUNDS:
            return
        joining = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        # By adapter, as passes lay them out: then attention finds them in the order of their slots.
        joining = sorted((row for row in joining if not row.future.cancelled()), key=lambda row: row.ready.identity)
        try:
            while joining := await self._sample_known(joining):
                batch, joining = self._split_prefill(joining)
                yield batch
        finally:
            # Not empty where a pass ran out of memory: these rows go on waiting.
            self._waiting.extendleft(reversed(joining))

    async def _sample_known(self, joining: list[ActiveSequence]) -> list[ActiveSequence]:
        """The rows that need a pass; others get tokens while the hidden state after their last token is kept."""
        rows = joining
        while found := [(row, state_D) for row in rows if (state_D := self._find_hidden(row)) is not None]:
            rows = [row for row, _ in found]
            self._accept(rows, await self._compute(self._draw, rows, torch.stack([state_D for _, state_D in found])))
            for row in rows:
                row.skip_prefill()
                if row.finished:
                    self._finish(row)
            rows = [row for row in rows if not (row.finished or row.future.done())]
        return [row for row in joining if not (row.finished or row.future.done())]

    def _find_hidden(self, row: ActiveSequence) -> Tensor | None:
        """The final hidden state after the last token of a row that waits."""
        return self._prefixes.find_hidden(row.ready.identity, row.pending)

    def _split_prefill(self, joining: list[ActiveSequence]) -> tuple[list[ActiveSequence], list[ActiveSequence]]:
        """The rows of one pass, and the later ones: what does not fit, or can reuse what this pass reads."""
        batch: list[ActiveSequence] = []
        later: list[ActiveSequence] = []
        coming: dict[BlockKey, ActiveSequence] = {}
        whole: set[tuple[int, tuple[int, ...]]] = set()
        longest = 0
        for index, row in enumerate(joining):
            match = self._prefixes.find_prefix(row.ready.identity, row.pending)
            cached = len(match.offsets) * BLOCK_TOKENS
            length = max(longest, len(row.pending) - cached)
            if batch and length * (len(batch) + 1) > self._max_prefill_tokens:
                return batch, later + joining[index:]
            first = match.missing and coming.setdefault(match.missing, row)
            waits = first is not None and first is not row and should_wait_for_prefix(first, row, cached)
            if self._prefixes.enabled and not waits:
                prompt = row.ready.identity, tuple(row.pending)
                waits = prompt in whole
                whole.add(prompt)
            if waits:
                later.append(row)
                continue
            row.admit(match.offsets, cached)
            batch.append(row)
            longest = length
        return batch, later

    async def _advance_safely(self, first: int, last: int, joining: bool = False) -> None:
        """Advance rows; where the pass fails, its rows do, or ``MemoryShortError`` tells that fewer rows may fit."""
        try:
            self._accept(*await self._compute(self._run_pass, first, last, joining and self._prefixes.enabled))
        except Exception as error:  # the boundary of one pass: its rows fail, the engine goes on
            kind = MemoryShortError if is_out_of_memory(error) else EngineError
            failure = kind(f"inference: a pass over {last - first} rows failed: {error!r}")
            if kind is MemoryShortError and len(self._running) > 1:
                raise failure from error
            for row in self._running[first:last]:
                fail_sequence(row, failure)

    async def _compute(self, function: Callable[..., Result], *arguments: object) -> Result:
        """The result of a function, called in the executor if there is one."""
        if self._executor is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    @torch.inference_mode()
    def _run_pass(self, first: int, last: int, reuse: bool) -> tuple[list[ActiveSequence], SampledTokens]:
        """Bring rows ``first`` to ``last`` into the cache and draw a token for each, in the order returned."""
        chunk, rows = self._layouts(self._running[first:last], first)
        if reuse:
            self._prefixes.copy_to_slots([(slot, self._running[slot].offsets) for slot in range(first, last)])
        hidden_RD = self._forward(chunk)
        if reuse:
            joined = ((slot, self._running[slot]) for slot in range(first, last))
            self._prefixes.store_prompts([(row.ready.identity, row.ids, slot) for slot, row in joined])
            for row, hidden_D in zip(rows, hidden_RD, strict=True):
                self._prefixes.store_hidden(row.ready.identity, row.ids, hidden_D.clone())
        self.counters.passes += 1
        return rows, self._draw(rows, hidden_RD)

    @torch.inference_mode()
    def _draw(self, rows: Sequence[ActiveSequence], hidden_RD: Tensor) -> SampledTokens:
        """The next token of each row, drawn from the final hidden state after its last one."""
        return sample_tokens(self._base.head_VD, hidden_RD, [row.sampling_request() for row in rows])

    def _accept(self, rows: Sequence[ActiveSequence], draws: SampledTokens) -> None:
        """Append each row's token; a row whose constraint raises fails."""
        for index, (row, token, logprob) in enumerate(zip(rows, draws.tokens, draws.logprobs, strict=True)):
            try:
                row.accept_token(token, logprob, draws.nuclei.get(index))
            except Exception as error:  # constraints are plugins, which may raise anything: its caller alone fails
                fail_sequence(row, error)

    @torch.inference_mode()
    def _remove_finished(self) -> None:
        """Remove finished rows."""
        freed = {slot for slot, row in enumerate(self._running) if row.finished or row.future.done()}
        for slot in freed:
            self._finish(self._running[slot])
        if torn := [slot for slot in freed if self._running[slot].torn]:
            self._cache.clear_slots(torn)
        self._free_slots(freed)

    def _free_slots(self, freed: set[int]) -> None:
        """Empty slots, and move the last rows into them."""
        if not freed:
            return
        kept = len(self._running) - len(freed)
        targets = sorted(slot for slot in freed if slot < kept)
        sources = [slot for slot in range(kept, len(self._running)) if slot not in freed]
        for source, target in zip(sources, targets, strict=True):
            self._running[target] = self._running[source]
        if sources:
            self._cache.move_slots(sources, targets)
        del self._running[kept:]
        if not self._running:
            self._layouts.clear()

    def _finish(self, row: ActiveSequence) -> None:
        self.counters.requests += 1
        self.counters.cached_tokens += row.reused
        self.counters.sampled_tokens += row.sampled
        self.counters.forced_tokens += row.forced
        if not row.future.done():
            row.future.set_result(row.make_generation())


def should_wait_for_prefix(first: ActiveSequence, row: ActiveSequence, cached: int) -> bool:
    """Whether a row should wait a pass, to copy the prefix that ``first`` is about to read: half its tokens or more."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first.ids, row.ids, strict=False)))
    return 2 * (same - cached) >= len(row.pending) - cached


def fail_sequence(row: ActiveSequence, error: Exception) -> None:
    """Raise an error at the row's caller; the row leaves at the end of the round."""
    if not row.future.done():
        row.future.set_exception(error)
