"""``tinker``: a server that speaks the Tinker API holds base model, adapter and optimiser.

The server computes log-probabilities over the whole vocabulary, of any tokens at a position (loss ``cross_entropy``).
Those of a choice's allowed tokens give the distribution that was sampled from, mask and temperature included, so every
loss, entropy and KL penalty is computed here. The gradient with respect to the server's log-probabilities goes back as
the weights of a second ``cross_entropy``, as the client's own ``forward_backward_custom`` does it. Over the whole
vocabulary the server tells the sampled token's log-probability only: the temperature has to be 1, and the entropy is
estimated by its negative, without a gradient.

One module, long as it is: every backend is one file.

Shape suffixes: S sequence, T token of all sequences, W choice, N allowed token of the listed choices, U choice over the
whole vocabulary, E token whose log-probability is computed: N, then U.
"""

import contextlib
import io
import os
import tarfile
import urllib.request
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from models import adapters
from models.adapters import CONFIG_FILE, TARGETS, WEIGHTS_FILE
from models.decoder import allowed_distribution
from models.forward import Packing
from models.model_config import ModelShape, read_model_shape
from schemas.config import LeagueConfig
from schemas.errors import ConfigError, ModelError
from schemas.plugins import PluginStruct
from trainer.advantages.base import ADVANTAGES, CriticConfig, UsesCritic
from trainer.backends import BACKENDS, AdapterLayout, AdapterSpec, MemoryReport, read_adapter_spec, report_memory
from trainer.batch import Microbatch
from trainer.critic import Critic
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import with_distribution
from trainer.losses import LOSSES, LossInputs
from trainer.optimizer import OptimizerState
from trainer.ranks import RankComm

ALPHA = 32.0
"""``lora_alpha`` of all adapters of the service, which the API has no field for."""
ATTENTION, MLP = frozenset(TARGETS[:4]), frozenset(TARGETS[4:])
STATE_FILE = "tinker.json"
"""File of an exported adapter with the path of the state that the server saved beside it."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""AdamW's constants of the other backends, which are torch's."""
EXPORT_TTL_S = 3600
"""The shortest time for which the service keeps an export; it is downloaded at once."""
_DOWNLOAD_ERRORS = (EOFError, HTTPException, LookupError, tarfile.TarError)


@BACKENDS.register("tinker")
class TinkerSettings(PluginStruct, frozen=True):
    """Address of the server, and what it supports. The key is in the environment variable ``TINKER_API_KEY``."""

    base_model: str = ""
    """The server's name of the base model whose files ``model.base`` names."""
    url: str = ""
    """Address of the server; empty for ``TINKER_BASE_URL``, or else the service of Thinking Machines."""
    export: Literal["files", "archive"] = "files"
    """How adapters are downloaded: as files in PEFT's format (``save_weights_external``), or as the archive of a
    sampler's weights, which servers without that have."""
    wide_targets: bool = True
    """Whether the server takes several target tokens a position. Without, a sequence is sent once for each of the most
    tokens that one of its choices allows."""
    state_ttl_s: int | None = None
    """Seconds for which the server keeps a step's state, at least 3600; None without an end."""

    def __post_init__(self) -> None:
        if self.state_ttl_s is not None and self.state_ttl_s < EXPORT_TTL_S:
            raise ConfigError(f"trainer.backend.settings.state_ttl_s: {self.state_ttl_s}; expected at least 3600")

    def check_league(self, config: LeagueConfig, free_text: bool) -> None:
        """Raise ``ConfigError`` for a league whose settings the API does not support; the message names the key."""
        trainer, model = config.trainer, config.model
        for key, fits, found, expected in (
            ("trainer.backend.settings.base_model", self.base_model, "", "the server's name of model.base"),
            ("trainer.ranks", trainer.ranks == 1, trainer.ranks, "1, since the server spreads the work"),
            ("trainer.device", trainer.device == "cpu", trainer.device, "'cpu', since the server has the model"),
            (
                "model.lora_alpha",
                model.lora_alpha == ALPHA,
                model.lora_alpha,
                f"{ALPHA:g}, which the API does not change",
            ),
            ("model.lora_layers", not model.lora_layers, list(model.lora_layers), "none, since the API adapts all"),
            ("model.adapter", not model.adapter, model.adapter, "none, since the API takes no weights from outside"),
        ):
            if not fits:
                raise ConfigError(f"{key}: {found!r} with trainer.backend 'tinker'; expected {expected}")
        for name, policy in config.policies.items():
            if policy.reset_operator is not None:
                raise ConfigError(
                    f"policies.{name}.reset_operator: {policy.reset_operator.name!r} with trainer.backend 'tinker'; "
                    "expected none, since the API takes no weights from outside"
                )
        _adapted_parts(model.lora_targets)
        if isinstance(ADVANTAGES.build(trainer.advantage), UsesCritic):
            raise ConfigError(
                f"trainer.advantage: {trainer.advantage.name!r} has a critic; expected an estimator without one, or "
                "trainer.backend 'native'"
            )
        loss = LOSSES.build(trainer.loss)
        if free_text and loss.entropy:
            raise ConfigError(
                f"trainer.loss.settings.entropy: {loss.entropy:g} with free text and trainer.backend 'tinker', which "
                "tells no entropy over the whole vocabulary; expected 0"
            )
        if free_text and config.inference.temperature != 1:
            raise ConfigError(
                f"inference.temperature: {config.inference.temperature:g} with free text and trainer.backend 'tinker', "
                "which knows log-probabilities over the whole vocabulary at temperature 1 only; expected 1"
            )

    def load(self, folder: Path, device: str, dtype: torch.dtype) -> "_TinkerBackend":
        """Connect to the server; only the model's configuration is read here."""
        try:
            import tinker
        except ImportError as error:
            raise ConfigError(
                f"trainer.backend: 'tinker' needs the client tinker ({error}); expected it installed (the extra "
                "'tinker')"
            ) from error
        try:
            service = tinker.ServiceClient(base_url=self.url or None)
            with _server_errors("connecting"):
                service.holder  # noqa: B018  (the client connects at the first use)
        except ModelError as error:
            if "TINKER_API_KEY" in str(error) or not os.environ.get("TINKER_API_KEY"):
                raise ConfigError(f"trainer.backend: {error}; expected a key in TINKER_API_KEY") from error
            raise
        return _TinkerBackend(service, read_model_shape(folder), dtype, self)


class _TinkerBackend:
    """A ``LearnerBackend`` on a server; nothing of the base model is in this process."""

    is_sharded = False
    base: nn.Module | None = None

    def __init__(self, service: Any, shape: ModelShape, dtype: torch.dtype, settings: TinkerSettings) -> None:
        self.service = service
        self.shape = shape
        self.dtype = dtype
        self.settings = settings

    def shard(self, device: str) -> None:
        raise ConfigError("trainer.ranks: 'tinker' computes on its server; expected 1")

    def new_adapter(self, spec: AdapterSpec, seed: int) -> "_TinkerAdapter":
        """A fresh adapter, which the server draws from the seed."""
        if spec.rslora or spec.alpha != ALPHA:
            raise ConfigError(
                f"model.lora_alpha: {spec.alpha:g}, rslora {spec.rslora}; expected {ALPHA:g} without rslora"
            )
        return _TinkerAdapter(self, spec, self.new_client(spec, seed))

    def new_client(self, spec: AdapterSpec, seed: int) -> Any:
        """A new adapter on the server."""
        attention, mlp = _adapted_parts(spec.targets)
        with _server_errors(f"making an adapter on {self.settings.base_model!r}"):
            # Engines that sample cannot adapt the output head.
            return self.service.create_lora_training_client(
                self.settings.base_model,
                rank=spec.rank,
                seed=seed % (1 << 31),
                train_attn=attention,
                train_mlp=mlp,
                train_unembed=False,
            ).result()

    def load_client(self, path: str, moments: bool) -> Any:
        """A saved adapter on the server, with the optimiser's moments or without."""
        suffix = "_with_optimizer" if moments else ""
        with _server_errors(f"loading {path}"):
            return getattr(self.service, f"create_training_client_from_state{suffix}")(path).result()

    def download(self, client: Any, name: str) -> dict[str, bytes]:
        """The files of a client's adapter as it is, by name."""
        with _server_errors("exporting the adapter"):
            if self.settings.export == "files":
                import tinker

                path = client.save_weights_external(name, ttl_seconds=EXPORT_TTL_S).result().path
                rest = tinker.RestClient(base_url=self.settings.url or None)
                return {name: _fetch(url) for name, url in rest.get_external_weights_urls(path).result().urls.items()}
            from tinker.lib.base_url import resolve_base_url

            path = client.save_weights_for_sampler(name, ttl_seconds=EXPORT_TTL_S).result().path
            run, _, name = path.removeprefix("tinker://").split("/")
            url = f"{resolve_base_url(self.settings.url)}/api/v1/training_runs/{run}/checkpoints/{name}/archive"
            with tarfile.open(fileobj=io.BytesIO(_fetch(url, {"X-API-Key": os.environ["TINKER_API_KEY"]}))) as archive:
                files = {Path(entry.name).name: archive.extractfile(entry) for entry in archive if entry.isreg()}
                return {name: file.read() for name, file in files.items() if file is not None}


class _TinkerAdapter:
    """A ``TrainableAdapter`` that is on the server."""

    is_sharded, is_remote = False, True
    device = torch.device("cpu")

    def __init__(self, backend: _TinkerBackend, spec: AdapterSpec, client: Any) -> None:
        self.backend = backend
        self.spec = spec
        self.client = client
        """The client library's, of the adapter; another one after a state is loaded."""
        self.shape = backend.shape
        self.dtype = backend.dtype
        self.layout = AdapterLayout(spec.rank, spec.alpha, {})
        self.gradient: list[_Request] = []
        """Requests whose backward pass is to be made with the next update."""
        self.path = ""
        """Path at which the server has saved the present weights and moments; empty if it has not."""
        self._saves = 0
        self._base: Any = None

    def begin(self, config: LearnerConfig, enabled: bool = True, dropout_seed: int | None = None) -> "_TinkerPass":
        """Start a pass; the base model alone is an adapter that was never trained."""
        if not enabled and self._base is None:
            self._base = self.backend.new_client(self.spec, 0)
        return _TinkerPass(self, self.client if enabled else self._base)

    def make_optimizer(self, config: LearnerConfig) -> "_TinkerOptimizer":
        return _TinkerOptimizer(self, config)

    def supports_layout(self, layout: str) -> bool:
        return layout == "packed"

    def make_critic(self, config: CriticConfig, seed: int, cells: int, ranks: RankComm) -> Critic:
        raise ConfigError("trainer.advantage: an estimator with a critic; expected one without for 'tinker'")

    def save_state(self) -> str:
        """Path of the present weights and moments on the server, saved once."""
        if not self.path:
            self._saves += 1
            with _server_errors("saving the adapter's state"):
                saved = self.client.save_state(f"state-{self._saves}", ttl_seconds=self.backend.settings.state_ttl_s)
                self.path = str(saved.result().path)
        return self.path

    def replace_client(self, client: Any, path: str = "") -> None:
        """Continue with another client's adapter."""
        self.client = client
        self.path = path
        self._saves = 0
        self.gradient.clear()

    def memory(self) -> MemoryReport:
        """Memory of this process, without the server's."""
        return report_memory(None, None, self.device)

    def save(self, folder: Path, base_model: str) -> None:
        """Save the server's export in PEFT's format; the path of the server's state is a file beside it."""
        from safetensors.torch import load

        folder, path = Path(folder), self.save_state()
        files = self.backend.download(self.client, f"export-{self._saves}")
        try:
            config = msgspec.json.decode(files[CONFIG_FILE], type=dict[str, Any])
            tensors = {name: tensor.float() for name, tensor in load(files[WEIGHTS_FILE]).items()}
        except (KeyError, ValueError, msgspec.DecodeError) as error:
            raise ModelError(f"{path}: the server's export is no adapter in PEFT's format ({error})") from error
        adapters.write(folder, tensors, config | {"base_model_name_or_path": base_model, "inference_mode": True})
        (folder / STATE_FILE).write_bytes(msgspec.json.encode({"path": path}))
        self._check_layout(folder)

    def load(self, folder: Path) -> None:
        """Load an adapter that the server saved; ``ModelError`` for any other."""
        self._check_layout(Path(folder))
        try:
            path = msgspec.json.decode((Path(folder) / STATE_FILE).read_bytes(), type=dict[str, str])["path"]
        except (OSError, KeyError, msgspec.MsgspecError) as error:
            raise ModelError(
                f"{folder}: no {STATE_FILE} ({error}); expected an adapter that trainer.backend 'tinker' has saved, "
                "since the API takes no weights from outside"
            ) from error
        self.replace_client(self.backend.load_client(path, moments=False))

    def _check_layout(self, folder: Path) -> None:
        spec = read_adapter_spec(folder)
        if (spec.rank, spec.alpha, spec.rslora) != (self.spec.rank, self.spec.alpha, False):
            raise ModelError(
                f"{folder}: an adapter of rank {spec.rank} and alpha {spec.alpha:g}; expected rank {self.spec.rank}, "
                f"alpha {self.spec.alpha:g}"
            )


class _TinkerOptimizer:
    """An ``AdapterOptimizer`` on the server."""

    def __init__(self, adapter: _TinkerAdapter, config: LearnerConfig) -> None:
        self.weights: tuple[Tensor, ...] = ()
        self.updates = 0
        self._adapter = adapter
        self._config = config

    def zero_grad(self) -> None:
        self._adapter.gradient.clear()

    def step(self, rate: float, ranks: RankComm, update: bool = True) -> float:
        """Request backward pass and update together; 0, or NaN without a request if a weight is not finite."""
        import tinker

        requests = list(self._adapter.gradient)
        self.zero_grad()
        if not all(bool(request.weight_E.isfinite().all()) for request in requests):
            return float("nan")
        if not update or not requests:
            return 0.0
        client, self._adapter.path = self._adapter.client, ""
        parameters = tinker.AdamParams(
            learning_rate=rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPSILON,
            weight_decay=self._config.weight_decay,
            grad_clip_norm=self._config.grad_clip,
        )
        with _server_errors("updating the adapter"):
            sent = [client.forward_backward(request.data(), "cross_entropy") for request in requests]
            metrics = client.optim_step(parameters).result().metrics or {}
            for future in sent:
                future.result()
        self.updates += 1
        return next((float(value) for name, value in metrics.items() if "grad_norm" in name), 0.0)

    def state(self) -> OptimizerState:
        return OptimizerState(self.updates, path=self._adapter.save_state())

    def load(self, state: OptimizerState) -> None:
        self._adapter.replace_client(self._adapter.backend.load_client(state.path, moments=True), state.path)
        self.updates = state.updates

    def reset(self) -> None:
        self.updates = 0


class _TinkerPass:
    """A ``ForwardPass`` on the server: one request a minibatch."""

    def __init__(self, adapter: _TinkerAdapter, client: Any) -> None:
        self._adapter = adapter
        self._client = client
        self._passes: list[tuple[_Request, Tensor]] = []

    def loss_inputs(self, chunk: Microbatch) -> LossInputs:
        request = _Request.make(chunk, self._adapter.backend.settings.wide_targets)
        with _server_errors("computing log-probabilities"):
            outputs = self._client.forward(request.data(), "cross_entropy").result().loss_fn_outputs
        logprob_E = request.read([torch.as_tensor(output["logprobs"].to_numpy()) for output in outputs])
        logprob_E.requires_grad_(torch.is_grad_enabled())
        if torch.is_grad_enabled():
            self._passes.append((request, logprob_E))
        return with_distribution(chunk, *_distribution(logprob_E, chunk))

    def backward(self) -> None:
        """Queue the passes for the request that ``step`` sends."""
        for request, logprob_E in self._passes:
            if logprob_E.grad is not None:
                self._adapter.gradient.append(request._replace(weight_E=-logprob_E.grad))
        self._passes.clear()


class _Request(NamedTuple):
    """The sequences of a packed row, and the tokens whose log-probabilities are computed."""

    ids_S: Sequence[Tensor]
    sequence_E: Tensor
    position_E: Tensor
    """Position in its sequence that predicts the token."""
    column_E: Tensor
    """Number of the token among those at its position."""
    token_E: Tensor
    weight_E: Tensor
    wide: bool

    @classmethod
    def make(cls, chunk: Microbatch, wide: bool) -> "_Request":
        """The request of a packed row, with weights of 0."""
        assert isinstance(chunk.packed, Packing)
        lengths, whole_U = chunk.packed.lengths, chunk.whole_U
        choice_E = torch.cat([chunk.row_N, whole_U])
        counts_W = torch.bincount(chunk.row_N, minlength=len(chunk.chosen_W))
        first_W = counts_W.cumsum(0) - counts_W
        column_N = torch.arange(len(chunk.row_N)) - first_W[chunk.row_N]
        sequence_E = chunk.sequence_W[choice_E]
        starts_S = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
        cell_E = chunk.wanted_BQ.flatten()[chunk.cell_W][choice_E]
        token_E = torch.cat([chunk.token_N, chunk.chosen_W[whole_U]])
        return cls(
            torch.split(chunk.ids_BL[0], list(lengths)),
            sequence_E,
            cell_E - starts_S[sequence_E],
            torch.cat([column_N, torch.zeros_like(whole_U)]),
            token_E,
            torch.zeros(len(token_E)),
            wide,
        )

    def data(self) -> list[Any]:
        """The client library's data: targets and weights [tokens, columns] of each sequence, or one for each column."""
        import tinker

        data = []
        for sequence, ids in enumerate(self.ids_S):
            entries = (self.sequence_E == sequence).nonzero().flatten()
            at = (self.position_E[entries], self.column_E[entries])
            width = int(at[1].max()) + 1
            targets = torch.zeros(len(ids), width, dtype=torch.int64).index_put(at, self.token_E[entries])
            weights = torch.zeros(len(ids), width).index_put(at, self.weight_E[entries])
            columns = [slice(None)] if self.wide and width > 1 else range(width)
            for column in columns:
                inputs = {"target_tokens": targets[:, column], "weights": weights[:, column]}
                prompt = tinker.ModelInput.from_ints(ids.tolist())
                data.append(tinker.Datum(model_input=prompt, loss_fn_inputs=inputs))
        return data

    def read(self, outputs: Sequence[Tensor]) -> Tensor:
        """Log-probabilities [E] from the server's of ``data``."""
        logprob_E, rest = torch.zeros(len(self.token_E)), iter(outputs)
        for sequence, ids in enumerate(self.ids_S):
            entries = (self.sequence_E == sequence).nonzero().flatten()
            width = int(self.column_E[entries].max()) + 1
            grid = [next(rest).reshape(len(ids), -1) for _ in range(1 if self.wide else width)]
            logprob_E[entries] = torch.cat(grid, 1)[self.position_E[entries], self.column_E[entries]].float()
        return logprob_E


def _distribution(logprob_E: Tensor, chunk: Microbatch) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [W] of each choice, from log-probabilities under the whole vocabulary."""
    listed_K, whole_U, temperature_W = chunk.listed_K, chunk.whole_U, chunk.temperature_W
    if bool((temperature_W[whole_U] != 1).any()):
        raise ConfigError(
            f"inference.temperature: free text was sampled at {float(temperature_W[whole_U].max()):g}; expected 1 for "
            "trainer.backend 'tinker'"
        )
    logprob_N, logprob_U = torch.split(logprob_E, [len(chunk.row_N), len(whole_U)])
    # They differ from logits by a constant of each position, which the renormalisation removes.
    logprob_K, entropy_W = allowed_distribution(logprob_N, chunk.row_N, chunk.chosen_W[listed_K], temperature_W)
    entropy_U = -logprob_U.detach()
    if torch.is_grad_enabled():
        entropy_U.requires_grad_().register_hook(_refuse_gradient)  # type: ignore[no-untyped-call]
    logprob_W = logprob_E.new_zeros(len(temperature_W)).index_copy(0, listed_K, logprob_K)
    return logprob_W.index_copy(0, whole_U, logprob_U), entropy_W.index_copy(0, whole_U, entropy_U)


def _refuse_gradient(gradient: Tensor) -> None:
    if bool(gradient.any()):
        raise ConfigError("trainer.loss.settings.entropy: more than 0 with free text; expected 0 for 'tinker'")


def _adapted_parts(targets: Sequence[str]) -> tuple[bool, bool]:
    """Whether linears of attention and of the MLP are adapted; raises ``ConfigError`` for only some of either."""
    names = frozenset(targets) or ATTENTION | MLP
    if names not in (ATTENTION, MLP, ATTENTION | MLP):
        raise ConfigError(
            f"model.lora_targets: {sorted(names)}; expected all linears of attention ({', '.join(sorted(ATTENTION))}), "
            f"of the MLP ({', '.join(sorted(MLP))}), or of both (empty) for trainer.backend 'tinker'"
        )
    return bool(names & ATTENTION), bool(names & MLP)


def _fetch(url: str, headers: dict[str, str] | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=600) as response:
        content: bytes = response.read()
        return content


@contextlib.contextmanager
def _server_errors(action: str) -> Iterator[None]:
    """Raise the client library's errors, and an incomplete download's, as ``ModelError``."""
    import tinker

    try:
        yield
    except (tinker.TinkerError, RuntimeError, ValueError, OSError, *_DOWNLOAD_ERRORS) as error:
        if isinstance(error, ModelError | ConfigError):
            raise
        reason = " ".join(str(error.__cause__ or error).split())[:500]
        raise ModelError(f"the Tinker server, {action}: {reason or type(error).__name__}") from error
