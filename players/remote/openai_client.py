"""An ``InferenceClient`` over any server with OpenAI's chat interface: vLLM, this league's own, OpenRouter, OpenAI."""

import os
from collections.abc import Sequence
from math import isfinite
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from inference.remote import OWNER
from players.remote.model import ChatCompletion, CompletionChoice, RemoteModel
from schemas.codec import DECODE_ERRORS
from schemas.config import RemoteAgentConfig
from schemas.episodes import Message, ModelResponse, unconstrained_model_call
from schemas.errors import ConfigError, RemoteError
from schemas.ids import split_agent

OPENROUTER_URL = "https://openrouter.ai/api/v1"
OPENAI_URL = "https://api.openai.com/v1"
KEY_VARIABLES = {OPENROUTER_URL: "OPENROUTER_API_KEY", OPENAI_URL: "OPENAI_API_KEY"}
"""Environment variable with the key of each service."""

_LARGEST_SEED = (1 << 63) - 1

ResponseT = TypeVar("ResponseT")

HOSTED_MODEL = "openai/gpt-4o-mini"
"""Default model at OpenRouter or OpenAI."""


class OpenAIClientConfig(msgspec.Struct, frozen=True):
    """Options of an ``OpenAIClient``."""

    max_tokens: int = 512
    """Tokens of a reply, where a call sets no limit."""
    timeout_s: float = 60.0
    """Timeout of one reply in seconds, from the request to its last byte."""
    tries: int = 4
    """Requests for one reply before there is none."""
    concurrency: int = 64
    """The most requests under way at a time."""
    first_pause_s: float = 0.5
    """Before the second try; doubled for each further one, with jitter."""
    asks_tokens: bool = False
    """Whether the server supports vLLM's ``return_token_ids`` and its names for neutral sampling. Others reject unknown
    fields."""
    processed_logprobs: bool = False
    """Whether its log-probabilities are those of the distribution that was sampled, as vLLM's are with
    ``--logprobs-mode processed_logprobs``. Others return those at temperature 1. Servers of a league declare by
    themselves that theirs are."""


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Choice(CompletionChoice):
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Completion(ChatCompletion):
    choices: Sequence[_Choice]
    prompt_token_ids: list[int] | None = None
    model: str | None = None
    system_fingerprint: str | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: int


class OpenAIClient:
    """Completes conversations at a server.

    Replies come with tokens only where the server returns every id and log-probability, and where these are of the
    distribution that was sampled; otherwise they are text alone, with the reason. The tokens' version is the one
    that a league's own server reports. For other servers it is that of the last ``get_policy_version``, and a swap of
    weights during an episode goes unnoticed.
    """

    def __init__(
        self,
        api_key: str | None = None,
        model: str = HOSTED_MODEL,
        base_url: str = OPENROUTER_URL,
        timeout: float | None = None,
        *,
        manner: OpenAIClientConfig = OpenAIClientConfig(),  # noqa: B008 - immutable
    ) -> None:
        """``base_url`` includes the version: ``https://host/v1``. An empty ``model`` is the first that it lists.

        Without an ``api_key`` OpenRouter and OpenAI get the one of their environment variable, and no other server gets
        any; where only OpenAI's is set, requests to OpenRouter go there. ``ConfigError`` if neither is. ``timeout``
        replaces ``manner.timeout_s``.
        """
        base_url, model, key = _resolve_key(api_key, model, base_url.rstrip("/"))
        self.model = model
        self.config = manner if timeout is None else msgspec.structs.replace(manner, timeout_s=timeout)
        self._url = base_url
        self._label = f"server {urlsplit(base_url).netloc}"
        config = RemoteAgentConfig(
            self._url, model, timeout_s=self.config.timeout_s, tries=manner.tries, requests=manner.concurrency
        )
        self._server = RemoteModel(model or "local", config, manner.first_pause_s, api_key=key)
        self._version = 0

    @classmethod
    def for_local(
        cls, port: int = 8000, timeout: float = 120.0, *, model: str = "", manner: OpenAIClientConfig | None = None
    ) -> "OpenAIClient":
        """A client of vLLM, or of another server on this machine without a key."""
        manner = manner or OpenAIClientConfig(asks_tokens=True)
        return cls(None, model, f"http://127.0.0.1:{port}/v1", timeout, manner=manner)

    @classmethod
    def for_openrouter(
        cls,
        api_key: str | None = None,
        model: str = HOSTED_MODEL,
        *,
        manner: OpenAIClientConfig = OpenAIClientConfig(),  # noqa: B008 - immutable
    ) -> "OpenAIClient":
        """A client of OpenRouter, or of OpenAI where only its key is set; ``ConfigError`` if neither is."""
        return cls(api_key, model, manner=manner)

    async def complete(
        self,
        messages: Sequence[Message],
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        """Request a reply; ``RemoteError`` if there is none after all tries, never with the key in it."""
        body = {
            "model": await self._resolve_model(),
            "messages": list(messages),
            "temperature": temperature,
            "max_tokens": max_tokens or self.config.max_tokens,
            "seed": seed & _LARGEST_SEED,
        }
        if self.config.asks_tokens and return_tokens:
            # Neutral, whatever the model's own defaults are: what is cut off has no log-probability to learn from.
            body |= {"logprobs": True, "return_token_ids": True, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
        completion = await self._server.request_completion(body, _Completion)
        choice = completion.choices[0]
        text = choice.message.content or ""
        if not return_tokens:
            return ModelResponse(text, None, choice.finish)
        prompt_ids = completion.prompt_token_ids or choice.prompt_token_ids or []
        content = None if choice.logprobs is None else choice.logprobs.content
        logprobs = [token.logprob for token in content or []]
        # A server of a league says so, and its conventions are known.
        is_from_league = completion.system_fingerprint == OWNER
        processed = self.config.processed_logprobs or is_from_league
        if reason := _missing_token_data(choice, prompt_ids, logprobs, temperature, processed):
            return ModelResponse(text, None, choice.finish, f"{self._label}: {reason}")
        named = split_agent(completion.model or "") if is_from_league else None
        version = self._version if named is None else named[1]
        tokens = unconstrained_model_call(prompt_ids, choice.token_ids or [], logprobs, version, temperature)
        return ModelResponse(text, tokens, choice.finish)

    async def get_policy_version(self) -> int:
        """The version of the model; 0 where the server reports none."""
        if not self.config.asks_tokens:
            return 0  # a hosted service: whatever page it shows there would be no version
        if named := split_agent(self.model):
            self._version = named[1]
            return self._version
        policy = f"?policy={quote(self.model, safe='')}" if self.model else ""
        data = await self._server.get_page(f"{self._url.removesuffix('/v1')}/adapters/version{policy}")
        if data is not None:
            self._version = self._decode(data, _Version, "/adapters/version").version
        return self._version

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _resolve_model(self) -> str:
        if not self.model:
            data = await self._server.get_page(f"{self._url}/models")
            names = [] if data is None else self._decode(data, _Models, "/models").data
            if not names:
                raise RemoteError(f"{self._label}: it names no model; expected one to be named")
            self.model = names[0].id
        return self.model

    def _decode(self, data: bytes, kind: type[ResponseT], page: str) -> ResponseT:
        try:
            return msgspec.json.decode(data, type=kind)
        except DECODE_ERRORS as error:
            raise RemoteError(f"{self._label}: {page} is not as expected, {error}") from None


def _resolve_key(api_key: str | None, model: str, url: str) -> tuple[str, str, str]:
    """Address, model and key: another service's where only its key is in the environment."""
    if api_key is not None or url not in KEY_VARIABLES:
        return url, model, api_key or ""
    keys = {of: os.environ.get(variable, "").strip() for of, variable in KEY_VARIABLES.items()}
    if keys[url]:
        return url, model, keys[url]
    if url == OPENROUTER_URL and keys[OPENAI_URL]:
        return OPENAI_URL, model.removeprefix("openai/"), keys[OPENAI_URL]
    expected = KEY_VARIABLES[url] if url == OPENAI_URL else " or ".join(KEY_VARIABLES.values())
    raise ConfigError(f"model {model!r}: no key in the environment; expected one in {expected}, or api_key")


def _missing_token_data(
    choice: _Choice, prompt_ids: Sequence[int], logprobs: Sequence[float], temperature: float, processed: bool
) -> str:
    """Reason for which a reply cannot be trained on; empty where it can."""
    ids = choice.token_ids or []
    if not prompt_ids or not ids:
        return "it returns no token ids"
    if len(logprobs) != len(ids) or not all(isfinite(value) and value <= 0 for value in logprobs):
        return (
            f"it returns {len(logprobs)} log-probabilities for {len(ids)} tokens, or some that are no numbers up to 0"
        )
    if temperature == 0 or (temperature != 1 and not processed):
        return f"its log-probabilities are not those at temperature {temperature:g}"
    return ""
