"""The server's side of connections: operations of clients, and what they subscribe to."""

from typing import TYPE_CHECKING

from tests.simulation.broker.protocol import Operation, Parser, format_error
from tests.simulation.broker.subjects import has_wildcard, matches
from tests.simulation.network import Connection

if TYPE_CHECKING:
    from tests.simulation.broker.server import Broker


class Subscription:
    """A client's interest in a subject."""

    def __init__(self, client: "ClientHandler", subject: str, sid: str) -> None:
        self.client = client
        self.subject = subject
        self.sid = sid
        self.left: int | None = None
        """Messages until it ends; None without end."""


class ClientHandler:
    """The server's side of a connection."""

    def __init__(self, broker: "Broker", connection: Connection) -> None:
        self.connection = connection
        self.subscriptions: dict[str, Subscription] = {}
        self._broker = broker
        self._parser = Parser()
        self.server = broker.cluster.pick() if broker.cluster is not None else ""
        """Server of a cluster that it is connected to."""
        self._role = broker.conditions.role_of(connection.client.name)
        self.has_role = self._role is not None
        """Whether it has to present credentials; any are believed."""
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        """Handle operations."""
        for operation in self._parser.feed(data):
            self._handle(operation)

    def _may(self, act: str, subject: str) -> bool:
        if self._role is None or self._role.may(act, subject):
            return True
        self.connection.send(format_error(f'Permissions Violation for {act.title()} to "{subject}"'))
        return False

    def _handle(self, operation: Operation) -> None:
        match operation.name:
            case _ if self._is_refused:
                pass
            case "CONNECT" if self.has_role:
                self._connect(self._broker.conditions.refusals, self.connection.client.name)
            case "PUB" if not self._may("publish", operation.subject):
                pass
            case "SUB" if not self._may("subscribe", operation.subject):
                pass
            case "PUB":
                self._broker.route(operation, self.server)
            # A client that reconnects may repeat a subscription; the server keeps the first.
            case "SUB" if operation.sid not in self.subscriptions:
                self.subscriptions[operation.sid] = made = Subscription(self, operation.subject, operation.sid)
                self._broker.interest.add(made)
            case "UNSUB":
                self._unsubscribe(operation)
            case "PING":
                self.connection.send(b"PONG\r\n")

    def _connect(self, refusals: dict[str, int], process: str) -> None:
        """Believe the credentials, or refuse the connection, as a server that reads its configuration anew may."""
        if not refusals.get(process):
            refusals.pop(process, None)
            return
        self._is_refused = True
        refusals[process] -= 1
        self.connection.send(format_error("Authorization Violation"))
        self._broker.later(self._broker.network.latency_s(), self.connection.reset)

    def _unsubscribe(self, operation: Operation) -> None:
        found = self.subscriptions.get(operation.sid)
        if found is not None and operation.limit:
            found.left = operation.limit
        elif found is not None:
            self.end(found)

    def end(self, subscription: Subscription) -> None:
        """End a subscription."""
        self.subscriptions.pop(subscription.sid, None)
        self._broker.interest.remove(subscription)

    def connection_lost(self) -> None:
        """Forget the client."""
        for subscription in list(self.subscriptions.values()):
            self.end(subscription)
        self._broker.client_lost()


class Interest:
    """The subscriptions of all clients."""

    def __init__(self) -> None:
        self._by_subject: dict[str, list[Subscription]] = {}
        """By subject; those of a pattern that ends with its only wildcard, ``*``, by the part before it."""
        self._patterns: list[Subscription] = []
        """Those of other patterns."""

    def add(self, made: Subscription) -> None:
        """Register a subscription."""
        self._group_of(made).append(made)

    def remove(self, gone: Subscription) -> None:
        """Forget a subscription."""
        if gone in (group := self._group_of(gone)):
            group.remove(gone)

    def _group_of(self, subscription: Subscription) -> list[Subscription]:
        key = subscription.subject.removesuffix("*")
        return self._patterns if has_wildcard(key) else self._by_subject.setdefault(key, [])

    def listeners(self, subject: str) -> list[Subscription]:
        """The subscriptions that a message on a subject reaches."""
        parent = subject[: subject.rfind(".") + 1]
        found = [*self._by_subject.get(subject, ()), *self._by_subject.get(parent, ())]
        return found + [each for each in self._patterns if matches(each.subject, subject)]
