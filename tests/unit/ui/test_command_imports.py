"""Commands import what they need and nothing else: their latency is that of their imports.

Modules are asserted rather than seconds. Commands of one process run in an order in which each may import more.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.simulated_history import make_run

TIMEOUT_S = 600.0

RUN_COMMANDS = """
import json, sys
from ui.cli.main import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["league", *words]
    try:
        main()
    except SystemExit as end:
        print(json.dumps([end.code, sorted(sys.modules)]), file=sys.stderr)
"""

NEVER = {"matplotlib", "pandas", "prompt_toolkit", "pyarrow", "scipy", "structlog", "textual", "torch"}
SCANT = {"duckdb", "league", "msgspec", "nats", "numpy", "workers"}


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, after it has run a script without an error."""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert process.returncode == 0, process.stderr
    return process


def modules_after(*commands: list[str]) -> list[set[str]]:
    """Modules of one process after each of the commands; an exit code of usage or error fails."""
    process = subprocess.run(
        [sys.executable, "-c", RUN_COMMANDS, json.dumps(commands)], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    answers = [json.loads(line) for line in process.stderr.splitlines() if line.startswith("[")]
    assert [code for code, _ in answers if code not in (0, None)] == [], process.stderr
    assert len(answers) == len(commands), process.stderr
    return [set(modules) for _, modules in answers]


def test_help_imports_the_parser_alone() -> None:
    modules, of_group, of_command = modules_after(["--help"], ["config", "--help"], ["plot", "--help"])
    assert modules & (NEVER | SCANT) == set()
    assert {name for name in modules if name.startswith("ui.")} == {"ui.cli", "ui.cli.main"}
    # A group's help prepares no command; the help of a command imports its module, and no other.
    assert of_group & (NEVER | {"nats", "numpy"}) == set()
    assert "ui.cli.config" not in of_group
    assert of_command & (NEVER | {"nats", "numpy"}) == set()
    assert {name for name in of_command if name.startswith("ui.cli.")} == {
        "ui.cli.charts",
        "ui.cli.main",
        "ui.cli.options",
    }


def test_commands_on_a_stopped_run_import_what_they_print(tmp_path: Path) -> None:
    place = ["--run", str(make_run(tmp_path))]
    # The first leaderboard makes the tables.
    status, _ = modules_after(["status", *place], ["leaderboard", *place])
    assert status & {"duckdb", *NEVER} == set()
    sql, ledger, leaderboard, events, verify = modules_after(
        ["sql", "SELECT count(*) FROM matches", *place],
        ["ledger", *place],
        ["leaderboard", *place],
        ["events", "--from", "2", *place],
        ["verify", "--no-replay", "--no-blobs", *place],
    )
    assert (sql | ledger | leaderboard | events | verify) & NEVER == set()


def test_a_gradient_step_imports_neither_torchs_compiler_nor_computer_algebra() -> None:
    script = (
        "import sys\n"
        "from models import adapters\n"
        "from models.decoder import Decoder\n"
        "from models.model_config import DecoderShape\n"
        "from schemas.config import TrainerConfig\n"
        "from schemas.trajectories import ModelCall, Trajectory\n"
        "from trainer.backends.native import NativeAdapter\n"
        "from trainer.learner import Learner\n"
        "sizes = {'intermediate_size': 8, 'layers': 1, 'heads': 1, 'kv_heads': 1, 'head_dim': 8}\n"
        "shape = DecoderShape('qwen3', 9, 8, **sizes, tied=True, qk_norm=True)\n"
        "lora = adapters.create(shape, adapters.LoraConfig(rank=2, alpha=4), seed=1)\n"
        "decoder = Decoder.random(shape, seed=0).requires_grad_(False)\n"
        "learner = Learner(NativeAdapter(decoder, lora), TrainerConfig(), 5)\n"
        "call = ModelCall([1, 2], [3], [0], [-0.7], [[3, 4]], 0, 1, 1.0, 1.0)\n"
        "names = ('A', 'B')\n"
        "calls = [Trajectory(f'm{n}', 'g', 'main', 0, n, n, [call], 2, float(n == 'A'), 0.5, 1) for n in names]\n"
        "before = lora.flat_P.detach().clone()\n"
        "learner.step(calls)\n"
        "assert not before.equal(lora.flat_P), 'no update was made'\n"
        "assert not {'torch._dynamo', 'sympy'} & set(sys.modules)\n"
    )
    run_script(script)


def test_the_first_line_of_a_command_is_formatted_and_filtered_as_workers_log() -> None:
    script = (
        "import sys\n"
        "from schemas.loggers import get_logger\n"
        "from ui.cli.main import main\n"
        "log = get_logger()\n"
        "sys.argv = ['league', 'config', 'cards']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'structlog' not in sys.modules\n"
        "log.info('not of interest')\n"
        "log.warning('a disk is full', disk='sda')\n"
    )
    process = run_script(script)
    assert "a disk is full" in process.stderr
    assert "disk=sda" in process.stderr
    assert "not of interest" not in process.stderr + process.stdout
