"""``python -m tests.simulation``: run seeds, reproduce one, minimise it.

A seed is a whole league of production workers, broker included, in one process under virtual time. ``loop`` is the
clock and the scheduler, ``network`` the connections, ``seams`` the other sources of chance. ``league`` runs a league on
them, ``faults`` disturbs it, ``invariants`` checks what is left.

``broker`` is nats-server with JetStream, in memory and in virtual time; it passes the contract suites of the real one.
Its ``clients`` speaks the wire protocol, so the real client library is part of the simulation; ``server`` routes
messages, ``writes`` stores them, and ``api`` answers the requests of JetStream over ``stream`` and ``consumer``.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

# Numbers that do not depend on the processor: kernels, NumPy and the C library without its vector extensions and fused
# multiplication, on one thread.
_PINNED = {
    **{"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    **{"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4", "OMP_NUM_THREADS": "1"},
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-FMA,-FMA4",
}


def _pin_environment() -> None:
    """Start again with the environment that makes numbers equal on all machines."""
    hashed = {} if "PYTHONHASHSEED" in os.environ else {"PYTHONHASHSEED": "0"}
    if any(os.environ.get(name) != value for name, value in _PINNED.items()) or hashed:
        environment = {**os.environ, **_PINNED, **hashed}
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], environment)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds to run")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--seed", type=int, help="run this one, with its log")
    parser.add_argument("--steps", type=int, default=20, help="gradient steps of each league")
    parser.add_argument("--kinds", help="draw from these kinds of fault, separated by commas; none for no faults")
    parser.add_argument("--minimise", action="store_true", help="with --seed: drop faults while it still fails")
    parser.add_argument("--bugs", help="module with BUGS: put each of them back, and find it")
    parser.add_argument("--quiet", action="store_true", help="print failures and the summary only")
    options = parser.parse_args()
    options.kinds = _parse_kinds(parser, options.kinds)
    return options


def _parse_kinds(parser: argparse.ArgumentParser, text: str | None) -> tuple[str, ...] | None:
    from tests.simulation.faults import KINDS

    kinds = None if text is None else tuple(name for name in text.split(",") if name != "none")
    if unknown := set(kinds or ()) - KINDS.keys():
        parser.error(f"--kinds: {', '.join(sorted(unknown))}; expected some of {', '.join(KINDS)}")
    return kinds


def main() -> int:
    """Run the command; returns 1 when an invariant was broken."""
    options = _parse()
    import torch

    from tests.simulation import league
    from tests.simulation.campaign import preload

    torch.set_num_threads(1)
    league.use_exact_square_roots()
    # In memory, where there is such a folder: leagues write and remove hundreds of small files.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="league-simulation-", dir=memory if memory.is_dir() else None) as scratch:
        tempfile.tempdir = scratch
        model = league.make_model(Path(scratch) / "model")
        preload(model)
        if options.bugs is not None:
            return _find_bugs(options, model)
        if options.seed is not None:
            return _run_one(options, model)
        return _run_many(options, model)


def _run_one(options: argparse.Namespace, model: Path) -> int:
    from tests.simulation.campaign import run_isolated
    from tests.simulation.faults import draw_faults
    from tests.simulation.minimise import minimise

    faults = draw_faults(options.seed, options.steps, options.kinds)
    outcome = run_isolated(options.seed, model, options.steps, faults, is_verbose=not options.minimise)
    if options.minimise and not outcome.is_sound:
        broken = {text.split(":")[0] for text in outcome.violations}

        def still_fails(faults: object) -> bool:
            found = run_isolated(options.seed, model, options.steps, faults)  # type: ignore[arg-type]
            return bool(broken & {text.split(":")[0] for text in found.violations})

        left = minimise(outcome.faults, still_fails)
        outcome = run_isolated(options.seed, model, options.steps, left, is_verbose=True)
    print("\n".join(outcome.lines))
    print(f"faults: {', '.join(fault.describe() for fault in outcome.faults) or 'none'}")
    _report(outcome)
    return 0 if outcome.is_sound else 1


def _report(outcome: object) -> None:
    from tests.simulation.run import Outcome

    assert isinstance(outcome, Outcome)
    verdict = "sound" if outcome.is_sound else "BROKEN"
    print(
        f"seed {outcome.seed}: {verdict}, {outcome.events} events, {outcome.virtual_s:,.0f} s of virtual time, "
        f"{len(outcome.faults)} faults ({', '.join(outcome.kinds)}), trace {outcome.digest}",
        flush=True,
    )
    for violation in outcome.violations:
        print(f"  {violation}", flush=True)


def _find_bugs(options: argparse.Namespace, model: Path) -> int:
    from tests.simulation.campaign import find_bug

    missed = 0
    for bug in importlib.import_module(options.bugs).BUGS:
        outcome = find_bug(bug, model, options.steps)
        missed += outcome is None
        found = "NOT FOUND" if outcome is None else f"found by seed {outcome.seed}: {outcome.violations[0]}"
        print(f"{bug.name}: {found} (limit: {bug.seeds} seeds)", flush=True)
    return 1 if missed else 0


def _run_many(options: argparse.Namespace, model: Path) -> int:
    from tests.simulation.campaign import run_seeds

    began, cpu = time.monotonic(), os.times()
    broken, virtual_s = [], 0.0
    seeds = range(options.first, options.first + options.seeds)
    for count, outcome in enumerate(run_seeds(seeds, model, options.steps, options.kinds), 1):
        virtual_s += outcome.virtual_s
        if not outcome.is_sound:
            broken.append(outcome.seed)
        if not outcome.is_sound or not options.quiet:
            _report(outcome)
        if count % 25 == 0 or count == options.seeds:
            wall = time.monotonic() - began
            spent = os.times()
            busy = spent.children_user + spent.children_system - cpu.children_user - cpu.children_system
            print(
                f"{count} of {options.seeds} seeds, {len(broken)} broken; {3600 * count / wall:,.0f} seeds/h, "
                f"{busy / count:.2f} s of processor a seed, {virtual_s / wall:,.0f} simulated seconds per second, "
                f"{wall / count * (options.seeds - count):,.0f} s left",
                flush=True,
            )
    for seed in broken:
        print(f"reproduce: python -m tests.simulation --seed {seed} --steps {options.steps}; minimise: --minimise")
    return 1 if broken else 0


if __name__ == "__main__":
    _pin_environment()
    code = main()
    sys.stdout.flush()
    # Objects of extensions are frozen in memory for the forked processes; their clean-up would complain of them.
    os._exit(code)
