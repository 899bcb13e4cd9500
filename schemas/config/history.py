"""The tables ``blobs``, ``history``, ``tracker``, ``workers`` and ``alarms``."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from schemas.config.base import Plugin, Table, parse_http_url, parse_url
from schemas.errors import ConfigError
from schemas.metrics import SILENCE_TIMEOUT_S
from schemas.numbers import FINITE, Count, PositiveFloat, PositiveInt, Processes


class DecisionsConfig(Table, frozen=True):
    """Which decisions of the league's models are kept for reading, and for how long.

    The archivist drops segments beyond the limits every ten minutes, or ``league gc --delete`` where the archivist's
    credentials do not permit it.
    """

    share: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """Share of the matches whose decisions are kept, chosen by the hash of the match's id; 0 keeps none."""
    days: PositiveFloat = 30.0
    """Age from which a segment of decisions is dropped."""
    bytes: PositiveInt = 1_000_000_000
    """Total size of the segments above which the oldest are dropped."""


class HistoryConfig(Table, frozen=True):
    """Records, archive and snapshots of the history."""

    archivists: Processes = 1
    """Workers that archive the history and take snapshots; a second one stands by."""
    records: Literal["digest", "keep"] = "keep"
    """Storage of match records. ``keep``: in the blob store. ``digest``: only a digest in the event, which verifies a
    copy kept elsewhere; the course of a match cannot be read from the league."""
    archive_events: PositiveInt = 50_000
    """Events per segment of the archive; the rest is archived when the archivist leaves."""
    snapshot_events: PositiveInt = 50_000
    """Events between snapshots."""
    decisions: DecisionsConfig = msgspec.field(default_factory=DecisionsConfig)
    copy_to: str = ""
    """Address of a copy of the archive, in the form of ``blobs.url``; empty for none. Each league writes to a folder of
    its own, and each file once. For a bucket, set ``AWS_ENDPOINT_URL`` and ``AWS_REGION`` in the environment."""

    def __post_init__(self) -> None:
        _check_store_url("history.copy_to", self.copy_to, "none")


def _check_store_url(key: str, url: str, otherwise: str) -> bool:
    """Whether an address of blobs is a bucket's; ``ConfigError`` unless it is that, a folder's or empty."""
    parts = parse_url(url)
    is_bucket = parts is not None and parts.scheme == "s3" and bool(parts.netloc) and "@" not in parts.netloc
    is_folder = url.startswith("/") or (url.startswith("file:///") and len(url) > len("file:///"))
    if (url and not (is_folder or is_bucket)) or {"?", "#"} & set(url):
        raise ConfigError(
            f"{key}: {url!r}; expected 's3://bucket/prefix', 'file:///path', '/path', or '' for {otherwise}"
        )
    return is_bucket


class BlobsConfig(Table, frozen=True):
    """Storage of large blobs: adapters, trainer states, game records, base models.

    Credentials of a bucket are no setting: every process takes them from its environment, as AWS's own tools do.
    """

    url: str = ""
    """``s3://bucket/prefix``, or a folder as ``file:///path`` or ``/path`` that all machines share; empty for the
    broker. Each league uses its own folder there. Fixed when the league is opened."""
    endpoint: str = ""
    """Address of an S3-compatible service, like ``https://host:9000``; empty for AWS."""
    region: str = "us-east-1"
    """Region of the bucket."""
    min_bytes: Count = 65_536
    """Minimum size of a blob in this store; smaller ones stay in the broker."""
    keep_versions: PositiveInt | None = None
    """``league gc --delete`` drops the adapters of versions that are not among the newest so many of their policy and
    that no checkpoint, match or snapshot refers to, and records it; None keeps all."""

    def __post_init__(self) -> None:
        is_bucket = _check_store_url("blobs.url", self.url, "the broker")
        if self.endpoint and (parse_http_url(self.endpoint) is None or "@" in self.endpoint):
            raise ConfigError("blobs.endpoint: expected an address like 'https://host:9000', without user and password")
        if self.endpoint and not is_bucket:
            raise ConfigError(f"blobs.endpoint: expected only with a bucket in blobs.url, which is {self.url!r}")


class LogExportConfig(Table, frozen=True):
    """A destination for events as lines of JSON, as for ``league events --to``."""

    to: str
    """Address of a log platform that accepts JSON lines, without user, password or query; or a file in the run's
    folder."""
    token_variable: str = ""
    """Environment variable that holds the platform's token."""
    types: list[str] = []
    """Event types to send; empty for all."""
    first: PositiveInt = 1
    """Sequence of the first event to send."""

    def __post_init__(self) -> None:
        # Who may change settings says so little about the files of the tracker's machine.
        is_file = "://" not in self.to and self.to not in ("", "-") and not {"", ".."} & set(self.to.split("/"))
        if not (is_file or parse_http_url(self.to)) or "@" in self.to or "?" in self.to:
            raise ConfigError(
                "tracker.forward.to: expected an address like 'https://host/path', without user, password or query, "
                "or a file in the run's folder"
            )


class TrackerConfig(Table, frozen=True):
    """Charts of the history: destinations and averaging."""

    workers: Count = 0
    """Trackers on the machine of ``league up``; a second one stands by. ``league worker tracker`` starts one at any
    time, which covers the whole history."""
    every_s: PositiveFloat = 64.0
    """Seconds between rows of averages, by the events' times."""
    window: Annotated[int, Meta(ge=1, le=1_000_000)] = 512
    """Number of newest values that are averaged."""
    sinks: list[Plugin] = msgspec.field(default_factory=lambda: [Plugin(name="jsonl")])
    """Destinations of rows: ``jsonl``, ``stdout`` or ``wandb``."""
    forward: list[LogExportConfig] = []
    """Destinations of the events themselves."""


class WorkersConfig(Table, frozen=True):
    """Worker processes."""

    silence_s: Annotated[float, Meta(ge=SILENCE_TIMEOUT_S, le=FINITE)] = 60.0
    """Seconds without a heartbeat, at least 15, after which the rater records that a process has left and that its
    matches failed. Counted by the rater's own heartbeats, so that pauses of the rater or the broker do not count."""


class AlarmsConfig(Table, frozen=True):
    """Alarms sent to people; ``league status`` shows those in effect."""

    webhook: str = ""
    """Address to which alarms are posted as JSON, without user, password or query; empty for none."""
    webhook_variable: str = ""
    """Environment variable that holds an address that is secret, in place of ``webhook``: the configuration is part of
    the history."""
    stall_minutes: PositiveFloat = 15.0
    """Minutes without a gradient step, while a trainer runs, that raise an alarm."""
    dead_letters: PositiveInt = 1
    """Dead letters that raise an alarm."""
    store_share: PositiveFloat = 0.95
    """Used share of the store that raises an alarm."""

    def __post_init__(self) -> None:
        if self.webhook and (parse_http_url(self.webhook) is None or {"@", "?"} & set(self.webhook)):
            raise ConfigError(
                "alarms.webhook: expected an address like 'https://host/path', without user, password or query "
                "(webhook_variable names the variable that holds one that is a secret)"
            )
        if self.webhook and self.webhook_variable:
            raise ConfigError("alarms.webhook_variable: expected it without alarms.webhook")
