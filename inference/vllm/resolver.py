"""A plugin of vLLM's server: adapters by digest, from a folder or the league's store, checked before vLLM sees them.

vLLM's server asks it for every unknown model name (entry point ``vllm.general_plugins``); it does nothing in a vLLM
that was not started for a league. A refusal becomes the server's answer: a ``ValueError``, which ``ModelError`` is,
answers 400 with its message.
"""

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inference.vllm.serve import SOURCE_VARIABLE, ZERO_ADAPTER, AdapterSource
from schemas.errors import ArtifactError, ConfigError, ModelError
from schemas.files import atomic_folder

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def register() -> None:
    """Register the resolver with vLLM's server, if that was started for a league."""
    text = os.environ.get(SOURCE_VARIABLE)
    if text is None:
        return
    from vllm.lora.resolver import LoRAResolverRegistry

    try:
        source = msgspec.json.decode(text, type=AdapterSource)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{SOURCE_VARIABLE}: {error}; expected an AdapterSource as JSON") from error
    LoRAResolverRegistry.register_resolver("league", LeagueResolver(source))


@dataclass
class LeagueResolver:
    """An implementation of vLLM's ``LoRAResolver``, without inheriting from it."""

    source: AdapterSource

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        """VLLM's request for an adapter; None where there is none of that name; raises for one that cannot be used."""
        from vllm.lora.request import LoRARequest

        if not _NAME.fullmatch(lora_name):
            return None
        base, folder = Path(base_model_name), Path(self.source.folder) / lora_name
        if lora_name != ZERO_ADAPTER and not folder.exists() and not await self._fetch(lora_name, folder):
            return None
        await asyncio.to_thread(_make_ready, base, folder, self.source.max_rank)
        # The server gives it a number of its own.
        return LoRARequest(lora_name, 1, str(folder))

    async def _fetch(self, digest: str, folder: Path) -> bool:
        """Fetch an adapter from the league's store into the folder; returns whether it could be there."""
        if not self.source.nats or not _DIGEST.fullmatch(digest):
            return False
        from league.blobs import open_blobs
        from league.log.connection import connect
        from league.log.jetstream import flush_and_close
        from league.run import access_from_environment
        from models.adapter_bundle import unpack_atomically

        client = await connect(self.source.nats, "vllm", access_from_environment())
        try:
            data = await open_blobs(client, self.source.league).get(digest)
        except ArtifactError as error:
            raise ModelError(f"adapter {digest}: {error}") from error
        finally:
            await flush_and_close(client)
        await asyncio.to_thread(unpack_atomically, data, folder)
        return True


def _make_ready(base: Path, folder: Path, max_rank: int) -> None:
    """Read an adapter by the league's reader, whose errors are specific, unlike those of vLLM's server.

    The one that adds nothing is written first; other servers of the folder see it whole or not at all.
    """
    from models.adapters import check, write_zero_adapter
    from models.model_config import read_model_shape

    if folder.name == ZERO_ADAPTER and not folder.exists():
        # Another server may be faster.
        with contextlib.suppress(OSError), atomic_folder(folder) as draft:
            write_zero_adapter(base, draft)
    check(folder, read_model_shape(base), max_rank=max_rank)
