"""The tables ``blobs``, ``history``, ``tracker``, ``workers`` and ``alarms``."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from schemas.config.base import Plugin, Table, parse_http_url, parse_url
from schemas.errors import ConfigError
from schemas.metrics import SILENCE_TIMEOUT_S
from schemas.numbers import FINITE, Count, PositiveFloat, PositiveInt


class HistoryConfig(Table, frozen=True):
    """Records, archive and snapshots of the history."""

    archivists: int = 1
    """Workers that archive and take snapshots; the second one is a standby."""
    records: Literal["digest", "keep"] = "keep"
    """``keep`` stores every match's record. ``digest`` stores its digest in the event only: the course of
    a match can then not be read from the league, and a copy kept elsewhere can still be verified."""
    archive_events: PositiveInt = 50_000
    """Events per segment of the archive; the rest is archived when the archivist leaves."""
    snapshot_events: PositiveInt = 50_000
    """Events between snapshots."""
    copy_to: str = ""
    """Where archivists copy the archive to, as ``blobs.url``; empty for nowhere. Files are written once, in a folder of
    the league's own. Endpoint and region of a bucket: ``AWS_ENDPOINT_URL`` and ``AWS_REGION`` of the environment."""

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
    """Where large blobs are stored: adapters, trainer states, game records, base models. Archives stay in the broker.

    Credentials of a bucket are no setting: every process takes them from its environment, as AWS's own tools do.
    """

    url: str = ""
    """``s3://bucket/prefix``, or a folder as ``file:///path`` or ``/path`` that all machines share; empty for the
    broker. Each league uses a folder of its own there. Fixed when the league is opened."""
    endpoint: str = ""
    """Address of an S3-compatible service, like ``https://host:9000``; empty for AWS."""
    region: str = "us-east-1"
    """Region of the bucket."""
    min_bytes: Count = 65_536
    """Smaller blobs stay in the broker."""
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
    """A destination for events as lines of JSON, as for ``league forward``."""

    to: str
    """Address of a log platform that accepts arrays of events, without user, password or query; or a file in the run's
    folder."""
    token_variable: str = ""
    """Name of the environment variable that holds the platform's token."""
    types: list[str] = []
    """Types of the events that are sent; none for all."""
    first: PositiveInt = 1
    """No event before this sequence is sent."""

    def __post_init__(self) -> None:
        # Who may change settings says so little about the files of the tracker's machine.
        is_file = "://" not in self.to and self.to not in ("", "-") and not {"", ".."} & set(self.to.split("/"))
        if not (is_file or parse_http_url(self.to)) or "@" in self.to or "?" in self.to:
            raise ConfigError(
                "tracker.forward.to: expected an address like 'https://host/path', without user, password or query, "
                "or a file in the run's folder"
            )


class TrackerConfig(Table, frozen=True):
    """Charts of the history: where they are sent, and how often."""

    workers: Count = 0
    """Trackers on the machine of ``league up``; a second one stands by for its files. One can be started at any time,
    by ``league worker tracker``: it tells the whole history."""
    every_s: PositiveFloat = 64.0
    """Between rows of averages, by the events' own times."""
    window: Annotated[int, Meta(ge=1, le=1_000_000)] = 512
    """The newest so many values are averaged."""
    sinks: list[Plugin] = msgspec.field(default_factory=lambda: [Plugin(name="jsonl")])
    """Where rows go: ``jsonl``, ``stdout`` or ``wandb``."""
    forward: list[LogExportConfig] = []
    """Where the events themselves are sent."""


class WorkersConfig(Table, frozen=True):
    """Worker processes."""

    silence_s: Annotated[float, Meta(ge=SILENCE_TIMEOUT_S, le=FINITE)] = 60.0
    """Seconds without a heartbeat after which the rater records that a process has left and that its matches failed;
    at least 15. Counted by the rater's own heartbeats, so that its pauses and the broker's do not count."""


class AlarmsConfig(Table, frozen=True):
    """Alarms that are sent to people; ``league status`` shows those that last."""

    webhook: str = ""
    """Address that alarms are posted to as JSON, without user, password or query; empty for none."""
    webhook_variable: str = ""
    """Name of the environment variable that holds the address instead, for one that is a secret: the configuration is
    part of the history."""
    stall_minutes: PositiveFloat = 15.0
    """Minutes without a gradient step while a trainer runs, after which there is an alarm."""
    dead_letters: PositiveInt = 1
    """Number of dead letters from which there is an alarm."""
    store_share: PositiveFloat = 0.95
    """Used share of the store from which there is an alarm."""

    def __post_init__(self) -> None:
        if self.webhook and (parse_http_url(self.webhook) is None or {"@", "?"} & set(self.webhook)):
            raise ConfigError(
                "alarms.webhook: expected an address like 'https://host/path', without user, password or query "
                "(webhook_variable names the variable that holds one that is a secret)"
            )
        if self.webhook and self.webhook_variable:
            raise ConfigError("alarms.webhook_variable: expected it without alarms.webhook")
