"""The streams of a league on a broker, which only the operator creates and changes.

On a cluster every stream has three replicas, and acknowledged messages lie on at least two disks; experience, which can
be generated again, may have one (``experience.copies``).
"""

from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, PersistMode, RetentionPolicy, StorageType, StreamConfig, StreamConsumerLimits

from league.log.connection import is_clustered, retry_until_ready
from schemas.config import ExperienceConfig
from schemas.errors import MissingStreamError
from schemas.subjects import (
    BLOB_BUCKET,
    DEAD_LETTER_STREAM,
    EXPERIENCE_STREAM,
    LEAGUE_STREAM,
    METRICS_STREAM,
    STATE_BUCKET,
    WORK_STREAM,
)

REPLICAS = 3
_DUPLICATE_WINDOW_S = 600.0
_METRICS_KEPT_S = 60.0
_MAX_JOBS = 200_000
"""Largest number of a league's waiting jobs. No limit in bytes: a broker reserves those at once, more than a small one
has."""
_MAX_HEARTBEATS = 100_000
"""Largest number of workers with a heartbeat: invented names cannot fill the broker's memory."""
_MAX_MESSAGE_BYTES = 4 * 2**20
"""Largest event with its headers (``MAX_EVENT_BYTES``): a gradient step of ten thousand trajectories has half of it."""
_MAX_IDLE_S = 300.0
"""Seconds after which an idle reader's consumer is removed: a worker cannot leave consumers behind."""
_MAX_DEAD_LETTERS = 2_000
"""Newest dead letters that are kept: some 100 MB when all hold their messages."""


def _stream_configs(is_cluster: bool) -> list[StreamConfig]:
    """All streams except experience, in the order in which they are made."""
    removed_when_idle = StreamConsumerLimits(inactive_threshold=_MAX_IDLE_S)
    buckets = [
        StreamConfig(
            name=f"OBJ_{bucket}",
            subjects=[f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            # By a roll-up one message would replace all others.
            allow_rollup_hdrs=False,
            consumer_limits=removed_when_idle,
        )
        for bucket in (BLOB_BUCKET, STATE_BUCKET)
    ]
    return [
        StreamConfig(
            name=METRICS_STREAM,
            subjects=["metrics.>"],
            # In memory on a cluster. A single broker forgets streams in memory when it restarts, and only the operator
            # may create them again; there it is a file that is not flushed.
            storage=StorageType.MEMORY if is_cluster else StorageType.FILE,
            persist_mode=None if is_cluster else PersistMode.ASYNC,
            max_msgs_per_subject=1,
            max_msgs=_MAX_HEARTBEATS,
            max_age=_METRICS_KEPT_S,
            consumer_limits=removed_when_idle,
        ),
        StreamConfig(
            name=LEAGUE_STREAM,
            subjects=["league.>"],
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            deny_purge=True,
            allow_direct=True,
            allow_atomic=True,
            max_msg_size=_MAX_MESSAGE_BYTES,
            consumer_limits=removed_when_idle,
            duplicate_window=_DUPLICATE_WINDOW_S,
        ),
        StreamConfig(
            name=WORK_STREAM,
            # Only subjects with a consumer: other messages would fill the queue.
            subjects=["work.*.play_match"],
            retention=RetentionPolicy.WORK_QUEUE,
            # Full means wait, as for experience: the requester retries. By subject, since any client can have the
            # broker store messages under subjects of other streams here, which no consumer takes.
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
            max_msgs_per_subject=_MAX_JOBS,
            duplicate_window=_DUPLICATE_WINDOW_S,
        ),
        StreamConfig(name=DEAD_LETTER_STREAM, subjects=["dead.>"], max_msgs=_MAX_DEAD_LETTERS),
        *buckets,
    ]


def _experience_config(limits: ExperienceConfig, consumed: int) -> StreamConfig:
    return StreamConfig(
        name=EXPERIENCE_STREAM,
        subjects=["experience.>"],
        # A trainer's position is a sequence, so sequences continue where a copied history's ended.
        first_seq=consumed + 1 if consumed else None,
        # Full means wait: the broker rejects, and rollout workers back off until the trainer has caught up. Each
        # policy has a subject of its own, so that one whose trainer lags holds up no other.
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs_per_subject=limits.max_messages,
        max_bytes=limits.max_bytes,
        duplicate_window=_DUPLICATE_WINDOW_S,
        # Flushed as the history is. Trajectories could be generated again, but a stream that lost its end would reuse
        # sequences that the history counts as consumed: the trainer, and then play, would wait without end.
    )


async def ensure_streams(js: JetStreamContext, limits: ExperienceConfig | None, consumed: int = 0) -> None:
    """Create missing streams, and give those of a broker that became a cluster their replicas.

    Without ``limits`` the experience stream is left out; a new one begins after ``consumed``. LogError if the broker
    rejects, e.g. because JetStream is off, or a cluster has too few nodes for the replicas.
    """
    is_cluster = is_clustered(js._nc)
    copies = REPLICAS if is_cluster else 1
    configs = _stream_configs(is_cluster)
    if limits is not None:
        configs.append(_experience_config(limits, consumed))
    for config in configs:
        replicas = min(copies, limits.copies) if limits and config.name == EXPERIENCE_STREAM else copies
        if replicas > 1:
            config.num_replicas = replicas
        await _ensure_stream(js, config)


async def raise_experience_limits(js: JetStreamContext, limits: ExperienceConfig) -> None:
    """Raise the experience stream's limits to those of changed settings.

    They are never lowered, since all leagues of a broker share the stream.
    """
    info = await retry_until_ready("reading the limits of trajectories", lambda: js.stream_info(EXPERIENCE_STREAM))
    most = max(info.config.max_msgs_per_subject or 0, limits.max_messages)
    size = max(info.config.max_bytes or 0, limits.max_bytes)
    if (most, size) != (info.config.max_msgs_per_subject, info.config.max_bytes):
        changed = info.config.evolve(max_msgs_per_subject=most, max_bytes=size)
        await retry_until_ready("raising the limits of trajectories", lambda: js.update_stream(changed))


async def _ensure_stream(js: JetStreamContext, config: StreamConfig) -> None:
    name = config.name or ""
    doing = f"creating stream {name}"
    try:
        info = await retry_until_ready(doing, lambda: js.stream_info(name))
    except MissingStreamError:
        await retry_until_ready(doing, lambda: js.add_stream(config))
        return
    if (config.num_replicas or 1) > (info.config.num_replicas or 1):
        await retry_until_ready(doing, lambda: js.update_stream(info.config, num_replicas=config.num_replicas))
