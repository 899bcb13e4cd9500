"""The JetStream API: requests on ``$JS.API.>`` and their answers."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from tests.simulation.broker import errors
from tests.simulation.broker.conditions import Conditions
from tests.simulation.broker.consumer import Consumer, ConsumerHost, PullRequest
from tests.simulation.broker.protocol import format_headers
from tests.simulation.broker.stream import StoredMessage, Stream

PREFIX = "$JS.API."


class Disk:
    """What a server keeps: its streams and consumers."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}


class Host(ConsumerHost, Protocol):
    """The server that an API belongs to."""

    disk: Disk
    conditions: Conditions

    def now_ns(self) -> int:
        """Its wall clock."""

    def server_of_consumer(self) -> str:
        """A server for a new consumer."""

    def arm(self, consumer: Consumer) -> None:
        """Call ``consumer.expire`` when it is due."""

    def ephemeral_name(self) -> str:
        """A new name."""


class Answer:
    """An answer of the API: a JSON document, or a message with headers for a direct get."""

    def __init__(self, data: bytes, headers: bytes = b"") -> None:
        self.data = data
        self.headers = headers


def format_time(time_ns: int) -> str:
    """A time as the API has it, in microseconds."""
    return (
        datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{time_ns % 10**9 // 1000:06d}Z"
    )


class JetStreamApi:
    """Answers requests of the API for one server."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._disk = host.disk
        self._routes: list[tuple[str, Callable[[list[str], dict[str, Any]], dict[str, Any]]]] = [
            ("INFO", self._account),
            ("STREAM.CREATE", self._create_stream),
            ("STREAM.UPDATE", self._update_stream),
            ("STREAM.INFO", self._stream_info),
            ("STREAM.DELETE", self._delete_stream),
            ("STREAM.PURGE", self._purge),
            ("STREAM.NAMES", self._stream_names),
            ("STREAM.LIST", self._stream_list),
            ("STREAM.MSG.GET", self._get_message),
            ("STREAM.MSG.DELETE", self._delete_message),
            ("CONSUMER.DURABLE.CREATE", self._create_consumer),
            ("CONSUMER.CREATE", self._create_consumer),
            ("CONSUMER.INFO", self._consumer_info),
            ("CONSUMER.DELETE", self._delete_consumer),
            ("CONSUMER.NAMES", self._consumer_names),
        ]

    def answer(self, subject: str, data: bytes, reply: str) -> Answer | None:
        """The answer to a request; None when it comes later, as deliveries."""
        what = subject.removeprefix(PREFIX)
        if what.startswith("CONSUMER.MSG.NEXT."):
            self._next(what.split(".")[3:], data, reply)
            return None
        body = json.loads(data) if data.strip() else {}
        if what.startswith("DIRECT.GET."):
            return self._get_direct(what.split(".", 3)[2:], body)
        kind = what.split(".")[0].lower()
        document: dict[str, Any] = {"type": f"io.nats.jetstream.api.v1.{kind}_response"}
        try:
            for route, handle in self._routes:
                if what == route or what.startswith(route + "."):
                    rest = what.removeprefix(route).removeprefix(".")
                    document |= handle(rest.split(".") if rest else [], body)
                    break
            else:
                raise errors.ApiError(404, 10000, f"the simulated server does not know {subject}")
        except errors.ApiError as error:
            document["error"] = error.body
        return Answer(json.dumps(document).encode())

    def _stream(self, name: str) -> Stream:
        if name not in self._disk.streams:
            raise errors.stream_not_found()
        return self._disk.streams[name]

    # ── Streams

    def _account(self, _: list[str], __: dict[str, Any]) -> dict[str, Any]:
        streams = self._disk.streams.values()
        used = sum(stream.bytes for stream in streams)
        limits = {
            **{"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1, "max_ack_pending": -1},
            **{"memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1, "max_bytes_required": False},
        }
        counts = {"streams": len(self._disk.streams), "consumers": len(self._disk.consumers)}
        return {"memory": 0, "storage": used, **counts, "limits": limits, "api": {"total": 0, "errors": 0}}

    def _create_stream(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        created = Stream(body, self._host.now_ns)
        known = self._disk.streams.get(names[0])
        if known is not None:
            if known.config != created.config:
                raise errors.ApiError(400, 10058, "stream name already in use with a different configuration")
            return self._describe(known)
        self._disk.streams[names[0]] = created
        return self._describe(created)

    def _update_stream(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(names[0])
        stream.config |= {key: value for key, value in body.items() if value is not None}
        return self._describe(stream)

    def _describe(self, stream: Stream, subjects: str = "") -> dict[str, Any]:
        state = stream.state(subjects)
        state["consumer_count"] = sum(1 for name, _ in self._disk.consumers if name == stream.name)
        state["last_ts"] = format_time(stream.last_time_ns)
        now = self._host.now_ns()
        created = format_time(stream.created_ns)
        return {"config": stream.config, "created": created, "state": state, "ts": format_time(now)}

    def _stream_info(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(names[0])
        described = self._describe(stream, body.get("subjects_filter") or "")
        if body.get("deleted_details"):
            gone = [at for at in range(stream.first, stream.last + 1) if at not in stream.messages]
            described["state"] |= {"deleted": gone, "num_deleted": len(gone)}
        return described

    def _delete_stream(self, names: list[str], _: dict[str, Any]) -> dict[str, Any]:
        self._stream(names[0])
        del self._disk.streams[names[0]]
        for key in [key for key in self._disk.consumers if key[0] == names[0]]:
            self._disk.consumers.pop(key).close("409 Consumer Deleted")
        return {"success": True}

    def _purge(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(names[0])
        if stream.config.get("deny_purge"):
            raise errors.ApiError(500, 10110, "stream purge not permitted")
        gone = stream.purge(body.get("filter") or ">", body.get("seq") or None, body.get("keep") or 0)
        return {"success": True, "purged": gone}

    def _stream_names(self, _: list[str], body: dict[str, Any]) -> dict[str, Any]:
        subject = body.get("subject")
        names = [name for name, stream in self._disk.streams.items() if not subject or stream.takes(subject)]
        return {"total": len(names), "offset": 0, "limit": 1024, "streams": names}

    def _stream_list(self, _: list[str], __: dict[str, Any]) -> dict[str, Any]:
        found = [self._describe(stream) for stream in self._disk.streams.values()]
        return {"total": len(found), "offset": 0, "limit": 256, "streams": found}

    # ── Messages

    def _find(self, stream: Stream, body: dict[str, Any]) -> StoredMessage:
        if subject := body.get("last_by_subj"):
            found = stream.last_of(subject)
        elif subject := body.get("next_by_subj"):
            found = stream.next_of(subject, body.get("seq") or 1)
        else:
            found = stream.messages.get(body.get("seq", 0))
        if found is None:
            raise errors.message_not_found()
        return found

    def _get_message(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        found = self._find(self._stream(names[0]), body)
        message: dict[str, Any] = {"subject": found.subject, "seq": found.sequence, "time": format_time(found.time_ns)}
        message["data"] = base64.b64encode(found.data).decode()
        if found.headers:
            message["hdrs"] = base64.b64encode(found.headers).decode()
        return {"message": message}

    def _get_direct(self, names: list[str], body: dict[str, Any]) -> Answer:
        try:
            stream = self._stream(names[0])
            found = self._find(stream, {"last_by_subj": names[1]} if len(names) > 1 else body)
        except errors.ApiError:
            return Answer(b"", format_headers({}, "404 Message Not Found"))
        about = {
            "Nats-Stream": stream.name,
            "Nats-Subject": found.subject,
            "Nats-Sequence": str(found.sequence),
            "Nats-Time-Stamp": format_time(found.time_ns),
        }
        block = format_headers(about)
        return Answer(found.data, block[:-2] + found.headers.partition(b"\r\n")[2] if found.headers else block)

    def _delete_message(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(names[0])
        if stream.config.get("deny_delete"):
            raise errors.ApiError(500, 10057, "message delete not permitted")
        if not stream.remove([body["seq"]]):
            raise errors.ApiError(400, 10043, f"sequence {body['seq']} not found")
        return {"success": True}

    # ── Consumers

    def _create_consumer(self, names: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream, config = self._stream(names[0]), body["config"]
        name = config.get("durable_name") or config.get("name") or (names[1] if len(names) > 1 else "")
        known = self._disk.consumers.get((stream.name, name))
        if known is not None:
            if body.get("action") == "create" and known.config != config:
                raise errors.ApiError(400, 10148, "consumer already exists")
            return known.info()
        if not self._host.conditions.has_consumers and not config.get("durable_name"):
            raise errors.TOO_MANY_CONSUMERS
        name = name or self._host.ephemeral_name()
        made = Consumer(name, config, stream, self._host, self._host.server_of_consumer())
        self._disk.consumers[stream.name, name] = made
        return made.info()

    def _consumer(self, names: list[str]) -> Consumer:
        stream = self._stream(names[0])
        if (stream.name, names[1]) not in self._disk.consumers:
            raise errors.consumer_not_found()
        return self._disk.consumers[stream.name, names[1]]

    def _consumer_info(self, names: list[str], _: dict[str, Any]) -> dict[str, Any]:
        return self._consumer(names).info()

    def _delete_consumer(self, names: list[str], _: dict[str, Any]) -> dict[str, Any]:
        self._consumer(names).close("409 Consumer Deleted")
        del self._disk.consumers[names[0], names[1]]
        return {"success": True}

    def _consumer_names(self, names: list[str], _: dict[str, Any]) -> dict[str, Any]:
        found = [name for stream, name in self._disk.consumers if stream == names[0]]
        return {"total": len(found), "offset": 0, "limit": 1024, "consumers": found}

    def _next(self, names: list[str], data: bytes, reply: str) -> None:
        """Take a pull request. One to a consumer that is gone gets no answer here but the server's no-responders."""
        consumer = self._disk.consumers[names[0], names[1]]
        body = json.loads(data) if data.strip().startswith(b"{") else {"batch": int(data or 1)}
        expires_ns = body.get("expires") or 0
        expires_at = self._host.time() + expires_ns / 1e9 if expires_ns else float("inf")
        pulled = PullRequest(reply, body.get("batch") or 1, body.get("max_bytes") or 0, expires_at)
        consumer.request(pulled, bool(body.get("no_wait")))
        self._host.arm(consumer)

    def has_consumer(self, subject: str) -> bool:
        """Whether a pull request's consumer is there."""
        names = subject.removeprefix(PREFIX).split(".")[3:]
        return len(names) >= 2 and (names[0], names[1]) in self._disk.consumers
