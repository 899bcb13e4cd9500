"""What a server can be asked for: models by name, adapters by digest."""

import contextlib
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from schemas.config import PromptsConfig
from schemas.errors import one_of
from schemas.ids import agent_name, split_agent
from trainer.model import Tokenizer
from workers.inference.base import InferenceBackend
from workers.inference.wire import Served
from workers.models import Models
from workers.runtime import Context
from workers.serving.failures import RefusedError

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Named(NamedTuple):
    """What a name stands for at this moment."""

    name: str
    """The immutable one: ``main@120`` for ``main``."""
    adapter: str | None


class ServedModels(Protocol):
    """A base model, and adapters on it."""

    backend: InferenceBackend
    tokenizer: Tokenizer

    @property
    def prompts(self) -> PromptsConfig:
        """How conversations are written."""

    def names(self) -> Sequence[str]:
        """Names that can be asked for, the base model's first; adapters can also be asked for by digest."""

    def find(self, name: str) -> Named:
        """What a name stands for.

        Raises:
            RefusedError: nothing (404).
        """

    def version(self, policy: str | None) -> Served:
        """The version of a policy that is served now; None is the main one.

        Raises:
            RefusedError: no such policy (404).
        """

    async def hold(self, adapter: str, held: contextlib.ExitStack) -> None:
        """Have an adapter ready until ``held`` is closed.

        Raises:
            RefusedError: that is no digest (404).
            ArtifactError: it is missing or damaged.
            ModelError: it does not fit the base model.
        """

    def unload(self, adapter: str) -> None:
        """Forget an adapter that nobody uses.

        Raises:
            RefusedError: it is not loaded (404), or in use (400).
        """


class LeagueModels:
    """The models of a league, as its history tells them.

    Args:
        context: Of the process, which follows the history.
        models: Of all policies, which ``follow`` keeps up to date.
    """

    def __init__(self, context: Context, models: Models) -> None:
        self.backend = models.backend
        self.tokenizer = models.tokenizer
        self._context = context
        self._models = models

    @property
    def prompts(self) -> PromptsConfig:
        """The league's template and thinking; the system is whoever asks."""
        own = self._context.config.prompts
        return PromptsConfig(template=own.template, thinking=own.thinking)

    def names(self) -> Sequence[str]:
        """The base model, the policies, the checkpoints, and digests that are loaded."""
        checkpoints = [agent.name for agent in self._context.state.checkpoints]
        return [self._context.config.base_agent, *self._context.config.trained, *checkpoints, *self._models.loaded]

    def find(self, name: str) -> Named:
        """A base model, policy (its live version), version of a policy, or digest."""
        if name == self._context.config.base_agent:
            return Named(name, None)
        if name in self._context.config.trained:
            served = self.version(name)
            return Named(agent_name(name, served.version), served.adapter)
        policy, version = split_agent(name) or ("", 0)
        if (published := self._context.state.published.get(policy, {}).get(version)) is not None:
            return Named(name, published.adapter)
        if _DIGEST.fullmatch(name):
            return Named(name, name)
        known = [self._context.config.base_agent, *self._context.config.trained]
        raise _unknown(name, known, ", a published version like 'main@20', or an adapter's digest")

    def version(self, policy: str | None) -> Served:
        """What ``Models`` has loaded of a policy; version 0 without an adapter before its first."""
        name = policy or self._context.config.trainer.policy
        if name not in self._context.config.trained:
            raise RefusedError(
                404, f"policy {name!r}: not trained here; expected {one_of(self._context.config.trained)}"
            )
        version, adapter = self._models.live(name)()
        return Served(name, version, adapter)

    async def hold(self, adapter: str, held: contextlib.ExitStack) -> None:
        """Fetched from the league's artifacts, where it is not loaded."""
        if not _DIGEST.fullmatch(adapter):
            raise RefusedError(404, f"adapter {adapter[:80]!r}: no such one; expected the SHA-256 digest of one")
        await self._models.ensure(adapter, held)

    def unload(self, adapter: str) -> None:
        """Make its room free, where it is neither live nor in use."""
        if adapter not in self._models.loaded:
            raise RefusedError(404, f"adapter {adapter[:80]!r}: not loaded")
        if not self._models.unload(adapter):
            raise RefusedError(400, f"adapter {adapter!r}: in use; expected an idle one")


class LoadedModels:
    """A backend by itself, with the adapters it was given, under the names it knows them by."""

    def __init__(self, backend: InferenceBackend, tokenizer: Tokenizer, adapters: Sequence[str] = ()) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self._adapters = list(adapters)

    @property
    def prompts(self) -> PromptsConfig:
        """As the model's folder has it."""
        return PromptsConfig()

    def names(self) -> Sequence[str]:
        """``base_model``, and the adapters."""
        return ["base_model", *self._adapters]

    def find(self, name: str) -> Named:
        """As named."""
        if name not in self.names():
            raise _unknown(name, self.names())
        return Named(name, None if name == "base_model" else name)

    def version(self, policy: str | None) -> Served:
        """The base model, which no training changes."""
        if policy not in (None, "base_model"):
            raise RefusedError(404, f"policy {policy!r}: none is trained here; expected 'base_model'")
        return Served("base_model", 0, None)

    async def hold(self, adapter: str, held: contextlib.ExitStack) -> None:
        """All are there for good."""
        if adapter not in self._adapters:
            raise _unknown(adapter, self._adapters)

    def unload(self, adapter: str) -> None:
        """All are there for good."""
        raise RefusedError(400, f"adapter {adapter[:80]!r}: the adapters of this server stay")


def _unknown(name: str, known: Sequence[str], others: str = "") -> RefusedError:
    return RefusedError(404, f"model {name[:80]!r}: no such one; expected {one_of(known)}{others}", "model")
