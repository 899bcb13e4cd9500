"""What every worker is built from: coroutines beside a block."""

import asyncio
import subprocess
import sys

import pytest

from workers.runtime import beside


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_background_ends_with_the_block_even_if_it_misses_a_cancellation():
    """As one does that waits for something of its own while it ends."""
    told = []

    async def deaf_at_first() -> None:
        while True:
            try:
                await for_ever()
            except asyncio.CancelledError:
                told.append(1)
                if len(told) > 1:
                    raise

    async def run() -> None:
        async with asyncio.timeout(300), beside(for_ever(), deaf_at_first()):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert len(told) == 2


def test_of_backgrounds_that_fail_together_the_first_fails_the_block():
    """Two workers find the disk full at once: the second cancellation came while the others were waited for."""
    ended = []

    async def fails(text: str, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise ValueError(text)

    async def slow_to_end() -> None:
        try:
            await for_ever()
        finally:
            for _ in range(9):
                await asyncio.sleep(0)
            ended.append(1)

    async def fails_at_its_end() -> None:
        try:
            await for_ever()
        finally:
            raise ValueError("third")

    async def run() -> None:
        async with beside(slow_to_end(), fails_at_its_end(), fails("first", 1), fails("second", 1)):
            await for_ever()

    with pytest.raises(ValueError, match="first"):
        asyncio.run(run())
    assert ended == [1]


def test_a_failure_that_meets_the_answer_to_a_request_fails_the_block():
    """The client library waits for answers by `asyncio.wait_for`, which in Python 3.11 loses a cancellation there."""

    limits = []

    async def run() -> None:
        answered = asyncio.get_running_loop().create_future()

        async def fails() -> None:
            answered.set_result(None)
            raise ValueError("broken")

        async with asyncio.timeout(30) as limit, beside(fails()):
            limits.append(limit)
            await asyncio.wait_for(answered, 60)
            await for_ever()

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())
    assert not limits[0].expired()


def test_a_background_that_fails_fails_the_block_and_ends_the_others():
    ended = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def watched() -> None:
        try:
            await for_ever()
        finally:
            ended.append(1)

    async def run() -> None:
        async with beside(watched(), fails()):
            await for_ever()

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())
    assert ended == [1]


def test_a_failure_that_was_handled_leaves_no_cancellation_behind():
    async def fails() -> None:
        raise ValueError("broken")

    async def run() -> int:
        with pytest.raises(ValueError, match="broken"):
            async with beside(fails()), beside(fails()):
                await for_ever()
        return asyncio.current_task().cancelling()

    assert asyncio.run(run()) == 0


@pytest.mark.parametrize(("nice", "expected"), [(0, 5), (10, 10)])
def test_a_background_process_never_raises_its_priority(nice, expected):
    """Without privileges it may not, and a tracker under `nice` ended with an error of the system's."""
    told = "import os; from workers.runtime import lower_priority; lower_priority(); print(os.nice(0))"
    command = ["nice", "-n", str(nice), sys.executable, "-c", told]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == expected
