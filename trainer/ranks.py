"""Communication among the data-parallel ranks of one trainer.

Every rank holds the same weights and receives the same trajectories. It computes a share of each minibatch; the
gradients are summed, so all ranks take the same update. Losses divide by the choices and sequences of the whole
minibatch, which is why sums, rather than means, give what one rank would have computed, but for the order of additions.

Sums go through gloo on the hosts; a GPU's gradients are copied there. Adapters are small.

Shape suffixes: S sequence.
"""

import hashlib
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from schemas.errors import ModelError

Ints = NDArray[np.int64]

RANK_TIMEOUT_S = 600.0
"""Default time that a rank waits for the others before it gives up."""


class RankComm:
    """One rank's connection to all ranks, which have joined ``torch.distributed``. A single one does not wait."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @classmethod
    def connect(
        cls, rank: int, count: int, store: Any, device: str = "cpu", timeout_s: float = RANK_TIMEOUT_S
    ) -> "RankComm":
        """Connect to the other ranks through a ``torch.distributed.Store``; returns once all are connected.

        ``device`` is ``cpu``, or the GPU on which this rank exchanges weights of the base model with the others. They
        are waited for ``timeout_s`` here and in every exchange.

        Raises:
            ModelError: a rank did not connect in time; the message names it.
        """
        timeout = timedelta(seconds=timeout_s)
        keys = [f"league/rank/{each}" for each in range(count)]
        store.set(keys[rank], b"here")
        try:
            store.wait(keys, timeout)
        except (dist.DistError, RuntimeError) as error:
            missing = [each for each, key in enumerate(keys) if not store.check([key])]
            raise ModelError(
                f"ranks {missing} of {count} of the trainer did not connect within {timeout_s:g} s; "
                "expected one process for each rank, all with the same league and configuration"
            ) from error
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        kind = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        dist.init_process_group(kind, store=store, rank=rank, world_size=count, timeout=timeout)
        return cls(rank, count)

    def disconnect(self) -> None:
        """Close the connections to the other ranks."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def shard(self, sequences_S: Ints, length_S: Ints) -> Ints:
        """This rank's share of some sequences (the same on every rank), balanced in tokens and in long sequences.

        ``length_S`` are the tokens of every sequence of the batch.
        """
        if self.count == 1:
            return sequences_S
        by_length = np.argsort(-length_S[sequences_S], kind="stable")
        return sequences_S[by_length[self.rank :: self.count]]

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all ranks, in place."""
        self._reduce(dist.ReduceOp.SUM, tensors)

    def all_reduce_max(self, *tensors: Tensor) -> None:
        """Replace each tensor by its element-wise maximum over all ranks, in place."""
        self._reduce(dist.ReduceOp.MAX, tensors)

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank; what the others pass is not looked at."""
        if self.count == 1:
            return data
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0)
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data and not self.rank else None
        if content is None:
            content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, 0)
        return content.numpy().tobytes()

    def _reduce(self, operation: dist.ReduceOp.RedOpType, tensors: tuple[Tensor, ...]) -> None:
        if self.count == 1:
            return
        for tensor in tensors:
            shared = tensor.detach().cpu()
            dist.all_reduce(shared, operation)
            if shared.data_ptr() != tensor.data_ptr():
                tensor.copy_(shared)

    def check_equal_weights(self, step: int, *weights: Tensor) -> None:
        """Raise ``ModelError`` unless all ranks hold the same weights, bit for bit, after ``step``."""
        if self.count == 1:
            return
        hasher = hashlib.sha256()
        for tensor in weights:
            hasher.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        own = torch.frombuffer(bytearray(hasher.digest()), dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(every, own)
        differing = [rank for rank, other in enumerate(every) if not torch.equal(other, every[0])]
        if differing:
            raise ModelError(f"step {step}: ranks {differing} of {self.count} hold other weights than rank 0")


SINGLE_RANK = RankComm()


def make_rendezvous_store(
    count: int, port: int = 0, host: str = "127.0.0.1", timeout_s: float = RANK_TIMEOUT_S, listens: bool | None = None
) -> Any:
    """Store through which the ranks find each other: a ``torch.distributed.TCPStore``.

    Port 0 chooses a free one. ``listens`` is whether this process holds the store; by default the one without a port
    does. The store, and what is read from it, is waited for ``timeout_s``.

    Raises:
        ModelError: nothing listens there.
    """
    timeout, is_master = timedelta(seconds=timeout_s), not port if listens is None else listens
    try:
        return dist.TCPStore(host, port, count, is_master, timeout, wait_for_workers=False)  # type: ignore[attr-defined]
    except (dist.DistError, RuntimeError) as error:
        raise ModelError(
            f"the trainer's ranks: no rank 0 at {host}:{port} within {timeout_s:g} s; expected it to listen there "
            f"(MASTER_ADDR and MASTER_PORT, which torchrun sets)"
        ) from error
