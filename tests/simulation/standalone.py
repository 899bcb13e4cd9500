"""A simulated broker on its own, for the contract suites: coroutines run against it under virtual time."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.simulation.broker.api import Disk
from tests.simulation.broker.conditions import Conditions
from tests.simulation.broker.server import Broker
from tests.simulation.broker.stream import Acknowledgements
from tests.simulation.loop import SimulatedLoop, run_simulated
from tests.simulation.network import Network
from tests.simulation.seams import simulated_machine

T = TypeVar("T")


class World:
    """A loop, a network and a broker without faults."""

    def __init__(self, seed: int = 0, limit_s: float = 86_400.0, is_clustered: bool = False) -> None:
        self.loop = SimulatedLoop(seed, limit_s)
        self.network = Network(self.loop, seed)
        self.disk = Disk()
        self.acknowledged = Acknowledgements()
        self.conditions = Conditions()
        self.seed = seed
        self.is_clustered = is_clustered
        self.broker = self.start_broker()

    def start_broker(self) -> Broker:
        """Start the server, after a crash too."""
        parts = self.loop, self.network, self.disk, self.acknowledged, self.conditions
        self.broker = Broker(*parts, str(self.seed), self.is_clustered)
        return self.broker


def run_with_broker(body: Callable[[World], Coroutine[Any, Any, T]], seed: int = 0, is_clustered: bool = False) -> T:
    """Run a coroutine in a world of its own, to its end."""
    world = World(seed, is_clustered=is_clustered)
    with simulated_machine(world.loop, seed):
        result: T = run_simulated(world.loop, body(world))
    return result
