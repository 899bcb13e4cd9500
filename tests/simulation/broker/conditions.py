"""How a simulated server behaves, which faults change while it runs."""

from collections.abc import Callable

from tests.simulation.broker.roles import Role
from tests.simulation.broker.stream import Incoming, Stored, Stream


class Conditions:
    """How a server behaves; faults change it while it runs."""

    def __init__(self) -> None:
        self.flush_s = 0.0008
        """Mean time of a flush to disk."""
        self.lost_replies = 0.0
        """Share of replies that are lost after their effect."""
        self.late_replies = 0.0
        self.late_mean_s = 8.0
        self.doubled_replies = 0.0
        self.reordering_s = 0.0
        """Mean delay of messages to clients; those of one stream or consumer keep their order, others overtake them."""
        self.is_full = False
        """Whether every write is refused."""
        self.has_leader = True
        """Whether streams take requests; without a leader there is no responder."""
        self.has_consumers = True
        """Whether readers' consumers are made; the account's limit of them is reached otherwise."""
        self.on_publish: Callable[[Stream, Incoming], Stored | None] = lambda stream, message: None
        """Answers a publication instead of storing it, when it returns an outcome."""
        self.refusals: dict[str, int] = {}
        """By process: its next connections that are refused although its credentials are good; 0 until one is not."""
        self.role_of: Callable[[str], Role | None] = lambda process: None
        """What a process may do; None for everything."""
