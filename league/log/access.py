"""Credentials for a broker, and a client to which its rejections are errors."""

import collections
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from league.auth.permissions import inbox_prefix
from league.auth.tokens import UserIdentity, parse_credentials
from schemas.errors import AccessError, LogUnavailableError
from schemas.loggers import get_logger

log = get_logger()
_ENDED = ("user authentication expired", "user authentication revoked", "account authentication expired")
_REFUSED = "authorization violation"
_REFUSALS = 3
"""Rejected connections in a row that count: a broker that reads its configuration anew rejects connections that have
not shown their credentials yet, good ones too."""
_PASSING = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT)
"""Errors of reading a file that may be gone at the next attempt."""
SILENCE_S = 20.0
"""How long a network may be cut before a connection counts as lost: dropped packets cause no error."""
_REMEMBERED = 256
_LONGEST_NONCE = 64
"""A broker's nonce has 15 to 22 characters. A longer one could be a match result, which workers sign with this key."""


class BrokerCredentials(msgspec.Struct, frozen=True):
    """Credentials file and certificate authority for a broker."""

    creds: Path | None = None
    """Credentials file, from ``league auth add``."""
    ca: Path | None = None
    """Certificate of the authority that signed the brokers'; when set, the connection must be encrypted."""

    def identity(self) -> UserIdentity | None:
        """The user of these credentials; None without a file.

        AccessError for a bad file, LogUnavailableError for one that cannot be read now.
        """
        return self._load()[0]

    def seed(self) -> str | None:
        """The secret key in the credentials; None without a file. Raises as ``identity`` does."""
        return self._load()[1]

    def _load(self) -> tuple[UserIdentity, str] | tuple[None, None]:
        if self.creds is None:
            return None, None
        try:
            text = self.creds.read_text()
        except (OSError, UnicodeDecodeError) as error:
            what = f"{self.creds}: credentials cannot be read ({error})"
            if isinstance(error, OSError) and error.errno in _PASSING:
                # A worker that counted as rejected would not be started again.
                raise LogUnavailableError(what) from None
            raise AccessError(what) from None
        return parse_credentials(text, str(self.creds))

    def connect_options(self) -> dict[str, Any]:
        """Options for the client library's ``connect``; AccessError if a file cannot be read or is of another kind."""
        options: dict[str, Any] = {}
        if (user := self.identity()) is not None:
            options |= {"user_credentials": str(self.creds), "inbox_prefix": inbox_prefix(user.name)}
        if self.ca is not None:
            try:
                options["tls"] = ssl.create_default_context(cafile=self.ca)
            except (OSError, ssl.SSLError) as error:
                raise AccessError(f"{self.ca}: no certificate ({error}); expected a PEM file") from None
        return options


class FailFastClient(Client):  # type: ignore[misc]
    """The library's client with four fixes.

    Rejected requests fail at once with an ``AccessError``: the library only logs a rejection. Requests fail when their
    connection does, not at their timeout. A connection ends when sent data stays unacknowledged for long: the library
    waits without end for a lost one to close. Headers are parsed in a fifth of the time: they were half the cost of
    reading the history.
    """

    id_key = b""
    """Secret of the credentials, with which message ids are made (``publisher``); empty without credentials."""

    def __init__(self) -> None:
        super().__init__()
        self._recent_requests: collections.deque[tuple[str, str]] = collections.deque(maxlen=_REMEMBERED)
        self.identity: UserIdentity | None = None
        self.access_error: AccessError | None = None
        """Why this connection will not reconnect; None while it may."""
        self.consumers: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
        """Names of the consumers by which this connection reads, by stream (``pull``)."""
        self._refusals = 0
        """Rejected connections since the last accepted one."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        """Send a message; AccessError if the broker no longer accepts these credentials."""
        check_access(self)
        if reply:
            self._recent_requests.append((subject, reply))
        await super().publish(subject, payload, reply, headers)

    async def _init_request_sub(self) -> None:
        check_access(self)
        await super()._init_request_sub()

    def _setup_nkeys_connect(self) -> None:
        super()._setup_nkeys_connect()
        sign: Callable[[str], bytes] = self.__dict__["_signature_cb"]

        def signed(nonce: str) -> bytes:
            if len(nonce) > _LONGEST_NONCE:
                raise AccessError(f"the broker asks for a signature of {len(nonce)} characters; expected a short nonce")
            return sign(nonce)

        self._signature_cb = signed

    async def handle_server_error(self, message: str) -> None:
        """Turn an error message of the broker into failed requests."""
        text = message.lower()
        name = self.options.get("name")
        why = next((word.rpartition(" ")[2] for word in _ENDED if word in text), "")
        has_ended = bool(why)
        if _REFUSED in text:
            self._refusals += 1
            has_ended = self._refusals >= _REFUSALS
        if has_ended and self.access_error is None:
            self.access_error = AccessError(
                f"the broker rejects the credentials of {name}: {why or 'none, unknown, expired or revoked'}; expected "
                "valid ones with --creds or LEAGUE_CREDS, which `league auth add` writes"
            )
            self._fail(self._resp_map.values(), self.access_error)
            log.error("the broker has closed this connection", error=str(self.access_error))
        # The library gives the subject in lower case.
        _, refused, subject = text.partition('violation for publish to "')
        if refused:
            subject = subject.rpartition('"')[0]
            for sent, reply in [each for each in self._recent_requests if each[0].lower() == subject]:
                self._recent_requests.remove((sent, reply))
                if (waiting := self._resp_map.get(reply.rpartition(".")[2])) is not None:
                    what = f"the broker does not let {name} publish on {sent}: another role may"
                    self._fail([waiting], AccessError(what))
        elif "permissions violation" in text:
            log.warning("rejected by the broker", what=message)

    async def fail_pending_requests(self) -> None:
        """Fail the pending requests of a lost connection: no reply will come."""
        self._fail(self._resp_map.values(), nats.errors.TimeoutError())

    @staticmethod
    def _fail(waiting: Iterable[Any], error: Exception) -> None:
        for future in list(waiting):
            if not future.done():
                future.set_exception(error)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        headers = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip()] = value.strip()
        return headers

    async def _process_connect_init(self) -> None:
        sock = self._transport._bare_io_writer.get_extra_info("socket") if hasattr(socket, "TCP_USER_TIMEOUT") else None
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))
        try:
            await super()._process_connect_init()
        except (OSError, nats.errors.Error):
            # The library, when it reconnects, leaves the failed connection open.
            self._transport.close()
            raise
        if self.is_connected:
            self._refusals = 0

    async def _process_err(self, err_msg: str) -> None:
        await self.handle_server_error(err_msg)
        if _REFUSED in err_msg.lower() and self.access_error is None:
            # The library would close the connection for good.
            await self._process_op_err(nats.errors.AuthorizationError())
            return
        await super()._process_err(err_msg)


def user_name(client: Client) -> str:
    """Name of a connection's user, from its credentials, or else the connection's name."""
    identity: UserIdentity | None = getattr(client, "identity", None)
    return str(client.options.get("name") or "") if identity is None else identity.name


def is_worker(client: Client) -> bool:
    """Whether a connection has the permissions of a role, which do not include reading messages by sequence alone."""
    identity: UserIdentity | None = getattr(client, "identity", None)
    return identity is not None and identity.role != "operator"


def check_access(client: Client) -> None:
    """Raise the AccessError of a connection whose credentials the broker no longer accepts."""
    if isinstance(client, FailFastClient) and client.access_error is not None:
        raise client.access_error
