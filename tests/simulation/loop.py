"""A seeded event loop with virtual time: a discrete-event simulation of several processes in one thread.

Each callback takes a fixed virtual time, and when none is ready the clock jumps to the next timer. Every callback
belongs to a ``Process``, through its context. Callbacks of one process run in the order in which they became ready, as
on every asyncio loop; which process runs next, and for how long, is drawn by the seed. A killed process runs nothing
more, not even its ``finally`` blocks.
"""

# mypy: disable-error-code="override, attr-defined"

import asyncio
import contextlib
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

EPOCH_S = 1_800_000_000
"""The wall clock when a simulation begins, in seconds since 1970."""
BOOT_S = 10_000.0
"""The monotonic clock when a simulation begins, in seconds."""
_MAX_SLICE = 8
"""Callbacks that one process runs at most before another one may."""
_MAX_STEPS_PER_INSTANT = 2_000_000
"""Callbacks without a jump of the clock: more are a loop that never waits."""

_SIGTERM = 15

_current: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)


class SimulationStuckError(Exception):
    """Nothing is left to run, or virtual time has passed its limit."""


class Process:
    """A simulated operating-system process."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.is_alive = True
        self.paused_until = 0.0
        """Virtual time until which it is not scheduled."""
        self.skew_s = 0.0
        """Offset of its wall clock from true time."""
        self.steps = 0
        """Callbacks that it has run."""
        self.kill_at_step: int | None = None
        """Number of callbacks after which it is killed."""
        self.parent: Process | None = None
        self.schema = 0
        """Version of the event schema that its code has; 0 for that of the repository."""
        self.on_end: list[Callable[[int], object]] = []
        """Called with the exit code when it ends."""
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        self.ready: deque[asyncio.Handle] = deque()
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)
        self._remains: list[Any] = []
        """What a killed process leaves behind; kept, since collecting a coroutine would run its ``finally`` blocks."""

    def end(self, code: int) -> None:
        """Drop what it has scheduled."""
        self.is_alive = False
        self._remains += [self.ready, self.context]
        self.ready = deque()
        for listener in self.on_end:
            listener(code)

    def keep(self, remains: Any) -> None:
        """Keep an object of a killed process from being collected."""
        self._remains.append(remains)

    def __repr__(self) -> str:
        return f"Process({self.name!r}, pid={self.pid})"


def current_process() -> Process | None:
    """The process whose callback is running; None outside of the loop."""
    return _current.get()


class SimulatedTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose hash does not depend on its address, so that sets of tasks iterate alike in every run."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        self.process = _current.get()
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. ``network`` must be set before anything connects.

    Args:
        seed: Seed of every scheduling decision.
        limit_s: Virtual time at which the run counts as stuck.
    """

    def __init__(self, seed: int, limit_s: float = 86_400.0) -> None:
        super().__init__()
        self.rng = Random(f"loop:{seed}")
        self.limit_s = limit_s
        self.network: Any = None
        self.programs: Callable[[list[str]], Coroutine[Any, Any, int]]
        """Runs a command line as the main task of a new process; returns its exit code."""
        self.handles_run = 0
        self.step_s = 5e-6
        """Virtual seconds that one callback takes."""
        self.thread_mean_s = 0.002
        """Mean virtual duration of work in a thread."""
        self.on_spawn: Callable[[Process], None] = lambda process: None
        self.on_switch: Callable[[Process], None] = lambda process: None
        """Called with the process that runs next."""
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_numbers = itertools.count()
        self._steps_at_jump = 0
        self._pids = itertools.count(2)
        self.root = Process("simulator", 1)
        self.processes: list[Process] = [self.root]
        self.ended: list[Process] = []
        self.set_task_factory(lambda loop, coro, **kwargs: SimulatedTask(coro, loop=loop, **kwargs))

    # ── Processes

    def spawn(self, name: str) -> Process:
        """A new process."""
        process = Process(name, next(self._pids))
        self.processes.append(process)
        self.on_spawn(process)
        return process

    def start(self, process: Process, coro: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as the main task of a process."""
        return process.context.copy().run(self.create_task, coro)

    def kill(self, process: Process, code: int = -9) -> None:
        """End a process as SIGKILL does: nothing of it runs again, and its connections are reset."""
        if not process.is_alive:
            return
        for task in asyncio.all_tasks(self):
            if isinstance(task, SimulatedTask) and task.process is process:
                process.keep(task)
        self.processes.remove(process)
        self.ended.append(process)
        process.end(code)
        if self.network is not None:
            self.network.reset_all(process)

    def pause(self, process: Process, seconds: float) -> None:
        """Stop scheduling a process for a while, as SIGSTOP does."""
        process.paused_until = max(process.paused_until, self._now + seconds)
        self.call_at(process.paused_until, lambda: None, context=self.root.context)

    # ── The clock and the queue

    def time(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass within a callback, as blocking work does."""
        self._now += seconds

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """See ``asyncio``."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """See ``asyncio``."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """See ``asyncio``."""
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """See ``asyncio``; there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when they come up."""

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_current) or self.root
        if process.is_alive:
            process.ready.append(handle)
        else:
            process.keep(handle)

    def _release_due_timers(self) -> None:
        timers = self._timers
        while timers and (timers[0][2]._cancelled or timers[0][0] <= self._now):
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if not timer._cancelled:
                self._enqueue(timer)

    def _run_once(self) -> None:
        self._release_due_timers()
        runnable = [p for p in self.processes if p.ready and p.paused_until <= self._now]
        if not runnable:
            self._jump()
            return
        process = runnable[0] if len(runnable) == 1 else runnable[int(self.rng.random() * len(runnable))]
        self.on_switch(process)
        for _ in range(min(len(process.ready), 1 + int(self.rng.random() * _MAX_SLICE))):
            self._run_step(process)
            if not process.ready or process.paused_until > self._now or self._stopping:
                return

    def _run_step(self, process: Process) -> None:
        if process.kill_at_step is not None and process.steps >= process.kill_at_step:
            self.kill(process)
            return
        handle = process.ready.popleft()
        if handle._cancelled:
            return
        process.steps += 1
        self.handles_run += 1
        self._now += self.step_s
        handle._run()

    def _jump(self) -> None:
        """Move the clock to the next timer.

        Raises:
            SimulationStuckError: there is none, or it lies beyond the limit.
        """
        if not self._timers:
            raise SimulationStuckError(f"at {self._now:.3f} s: every process waits for ever")
        self._now = max(self._now, self._timers[0][0])
        if self._now > self.limit_s:
            raise SimulationStuckError(
                f"at {self._now:.0f} s of virtual time: expected the end by {self.limit_s:.0f} s"
            )
        if self.handles_run - self._steps_at_jump > _MAX_STEPS_PER_INSTANT:
            raise SimulationStuckError(f"at {self._now:.3f} s: a loop that never waits")
        self._steps_at_jump = self.handles_run

    # ── What processes use of the operating system

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Run blocking work at once; its result arrives after the virtual duration of the work."""
        future = self.create_future()
        result, error = None, None
        try:
            result = func(*args)
        except Exception as failure:
            error = failure

        def settle() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.rng.expovariate(1.0) * self.thread_mean_s, settle)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to a simulated server."""
        process = _current.get() or self.root
        return await self.network.connect(process, protocol_factory, f"{host}:{port}")

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        """Handle a signal of the current process; ``terminate`` sends SIGTERM."""
        process, context = _current.get() or self.root, contextvars.copy_context()
        process.signal_handlers[int(sig)] = lambda: self.call_soon(callback, *args, context=context)

    def remove_signal_handler(self, sig: int) -> bool:
        """Stop handling a signal of the current process."""
        process = _current.get() or self.root
        return process.signal_handlers.pop(int(sig), None) is not None

    def signal(self, process: Process, sig: int) -> None:
        """Send a signal; without a handler for it, the process is killed."""
        handler = process.signal_handlers.get(int(sig))
        if handler is None:
            self.kill(process)
        else:
            handler()

    async def subprocess_exec(self, protocol_factory: Any, program: Any, *args: Any, **_: Any) -> Any:
        """Start a simulated process: ``programs`` runs its command line."""
        protocol = protocol_factory()
        child = self.start_program(list(args))
        transport = _SubprocessTransport(self, child)
        protocol.connection_made(transport)
        return transport, protocol

    def start_program(self, args: list[str]) -> Process:
        """Start a child of the current process: ``programs`` runs its command line, which has a ``--name``."""
        child = self.spawn(args[args.index("--name") + 1])
        child.parent = _current.get() or self.root
        self.start(child, self._run_program(child, args))
        return child

    async def _run_program(self, child: Process, args: list[str]) -> None:
        code = await self.programs(args)
        self.call_soon(self.kill, child, code, context=self.root.context)

    def _write_to_self(self) -> None:
        """There is no selector to wake."""

    def _process_events(self, event_list: Any) -> None:
        """There is no selector."""


class _SubprocessTransport(asyncio.SubprocessTransport):
    """A parent's handle of a child process."""

    def __init__(self, loop: SimulatedLoop, child: Process) -> None:
        super().__init__()
        self._loop = loop
        self._child = child
        self._exited: asyncio.Future[int] = loop.create_future()
        parent = _current.get() or loop.root
        child.on_end.append(lambda code: loop.call_soon(self._ended, code, context=parent.context))

    def _ended(self, code: int) -> None:
        if not self._exited.done():
            self._exited.set_result(code)

    async def _wait(self) -> int:
        return await asyncio.shield(self._exited)

    def get_pid(self) -> int:
        return self._child.pid

    def get_returncode(self) -> int | None:
        return self._exited.result() if self._exited.done() else None

    def get_pipe_transport(self, fd: int) -> None:
        """There are no pipes."""

    def send_signal(self, signal: int) -> None:
        self._loop.signal(self._child, signal)

    def kill(self) -> None:
        self._loop.kill(self._child)

    def terminate(self) -> None:
        self.send_signal(_SIGTERM)

    def close(self) -> None:
        """There is nothing to release."""


def run_simulated(loop: SimulatedLoop, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as the simulator's own process, to its end."""
    with contextlib.closing(loop):
        return loop.run_until_complete(loop.start(loop.root, main))
