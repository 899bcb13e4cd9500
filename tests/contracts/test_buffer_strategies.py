"""The contract of a buffer's strategy, run over every registered one."""

from random import Random

import pytest

from schemas.config import Plugin
from trainer.buffer import STRATEGIES, Unit

UNITS = [Unit(10 + n, -1, "nim", "ab"[n % 2], n % 4, float(n % 3)) for n in range(24)]


@pytest.fixture(params=STRATEGIES.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_unit_is_there_once(name: str) -> None:
    order = STRATEGIES.build(Plugin(name=name))(UNITS, Random(1))
    assert sorted(order) == UNITS


def test_the_same_draw_gives_the_same_order(name: str) -> None:
    strategy = STRATEGIES.build(Plugin(name=name))
    assert strategy(UNITS, Random(1)) == strategy(UNITS, Random(1))


def test_nothing_that_waits_is_no_trouble(name: str) -> None:
    assert STRATEGIES.build(Plugin(name=name))([], Random(1)) == []
