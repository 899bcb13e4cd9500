"""``league doctor``, ``config init|check`` and ``game check``: machine, settings and game."""

import asyncio
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer
import uvloop
from typer import Argument, Option

from league.queries.terminal import Console
from league.queries.text_table import number_columns, print_table
from league.run import Run
from schemas.config import LeagueConfig, load_config
from schemas.errors import ConfigError, ExitCode, UsageError
from ui.cli.options import JsonOption, TrustOption, load_settings
from ui.output import print_json, print_line

if TYPE_CHECKING:
    from lifecycle.parity import ParityReport
    from lifecycle.resource_estimate import DeviceEstimate, Estimate

_TEXT_WIDTH = 116


def init(
    out: Annotated[Path, Argument(metavar="FILE", help="File to write; must not exist.")] = Path("league.toml"),
    game: Annotated[str | None, Option(help="Game or arena, also of LEAGUE_PLUGINS; by default diplomacy.")] = None,
    hardware: Annotated[
        str | None, Option(help="laptop, gpu-24gb, gpu-80gb or trainer-and-rollouts; by default laptop.")
    ] = None,
    model: Annotated[
        str | None,
        Option(help="made, smollm2-135m-instruct, a folder or a hub id; by default one that fits the hardware."),
    ] = None,
    minutes: Annotated[float | None, Option(help="Minutes of training.")] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask: use the defaults.")] = False,
) -> None:
    """Write a commented settings file for `league up`; asks for what is not given, Enter takes the default."""
    from lifecycle.config_checks import check_config
    from lifecycle.presets import PRESETS, PresetOptions, default_minutes, load_preset, settings_file

    if out.exists():
        raise UsageError(f"{out}: exists already; expected a file that does not, or: league config check {out}")

    def ask(question: str, default: str) -> str:
        return default if yes else str(typer.prompt(question, default=default, err=True)).strip()

    hardware = hardware or ask(f"Hardware ({', '.join(PRESETS)})", "laptop")
    preset = load_preset(hardware)
    game = game or ask("Game", "diplomacy")
    model = model or ask(f"Model ({', '.join(preset.known_models)}, a folder or a hub id)", preset.model)
    if minutes is None:
        given = ask("Minutes of training", f"{default_minutes(preset, game, model):g}")
        try:
            minutes = float(given)
        except ValueError:
            raise UsageError(f"minutes of training: {given!r}; expected a number") from None
    answers = PresetOptions(preset, game, model, minutes)
    _write_new_file(out, settings_file(answers, _explain_config))
    check_config(load_config(out))
    typer.echo(f"{out} written; next: league config check {out}, then league up --config {out}", err=True)


def check(
    file: Annotated[Path, Argument(metavar="FILE", help="A settings file.")],
    gpu_gb: Annotated[
        float | None, Option(min=1.0, help="Memory of each GPU in GB; by default this machine's.")
    ] = None,
    trust: TrustOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a settings file: print its error and place, or the workers, memory and disk that it would need.

    Also tried are the base model, packages and stores of blobs on this machine; of all that nothing stays. Exit code 1:
    the settings are right, but `league up` could not run them with this memory or on this machine.
    """
    from lifecycle.config_checks import check_config
    from lifecycle.machine_checks import (
        check_base_model,
        check_start_adapter,
        find_memory_shortage,
        find_shortcomings,
        needs_gpu,
    )
    from lifecycle.resource_estimate import estimate_resources

    config = load_settings(file, trust)
    try:
        check_config(config)
        check_base_model(config)
        check_start_adapter(config)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    own_gpu_gb = _local_gpu_gb(config)
    estimate = estimate_resources(config, gpu_gb or own_gpu_gb)
    found = [each.text for each in asyncio.run(find_shortcomings(config, estimate.disk_gb_step or 0.0))]
    found += find_memory_shortage(estimate.memory_gb)
    # Settings for a GPU are also written on machines without one: what such a machine lacks is no fault then.
    is_elsewhere = needs_gpu(config) and (gpu_gb is not None or own_gpu_gb is None)
    problems = [problem for device in estimate.devices for problem in device.problems]
    problems += [] if is_elsewhere else found
    if as_json:
        print_json({**msgspec.to_builtins(estimate), "problems": problems, "missing_here": found})
    else:
        lines = [f"{file}: a league {config.name!r} of {config.game.name}", *_estimate_lines(config, estimate)]
        lines += _list_lines("not here", found) if is_elsewhere else []
        lines += _list_lines("PROBLEM", problems) or [f"next: league up --config {file}"]
        typer.echo("\n".join(lines))
    raise typer.Exit(ExitCode.ERROR if problems else ExitCode.SUCCESS)


def check_game(
    name: Annotated[str, Argument(help="A game, also of LEAGUE_PLUGINS.")],
    config: Annotated[Path | None, Option(help="A league's settings; [game] is used. By default the defaults.")] = None,
    trust: TrustOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a game keeps the contract of games; exits 1 if it breaks a rule.

    It is played at random by fixed seeds: legal and to an end, repeatable, saved and replayed with equal bytes; bad
    actions change nothing, bots play legally, and the text for models can express every action.
    """
    from arena.games import make_game
    from arena.games.contract import check_contract

    settings = {}
    if config is not None:
        game = load_settings(config, trust).game
        if game.name != name:
            raise UsageError(f"--config {config}: game.name is {game.name!r}; expected {name!r}")
        settings = game.settings
    findings = list(check_contract(make_game(name, settings)))
    if as_json:
        print_json(findings)
    else:
        _print_findings((not each.found, each.rule, each.found) for each in findings)
    raise typer.Exit(ExitCode.ERROR if any(each.found for each in findings) else ExitCode.SUCCESS)


def _print_findings(findings: Iterable[tuple[bool, str, str]]) -> None:
    """Print lines of whether something is as it should be, what, and what was found."""
    console = Console()
    for ok, what, found in findings:
        console.print("[green]ok  [/green] " if ok else "[red]MISS[/red] ", end="")
        print_line(console, f"{what}: {found}" if found else what)


def _list_lines(title: str, texts: Sequence[str]) -> list[str]:
    wrapper = textwrap.TextWrapper(_TEXT_WIDTH, f"{title:<12}", " " * 12, break_on_hyphens=False)
    return [line for text in texts for line in wrapper.wrap(text)]


def _explain_config(config: LeagueConfig) -> list[str]:
    from lifecycle.resource_estimate import estimate_resources

    return ["", *_estimate_lines(config, estimate_resources(config))]


def _estimate_lines(config: LeagueConfig, estimate: "Estimate") -> list[str]:
    workers = ", ".join(f"{count} {role}" for role, count in estimate.workers.items() if count)
    from lifecycle.config_notes import config_notes, describe_learner, describe_opponents

    lines = [f"workers     {workers}", f"memory      about {estimate.memory_gb:.1f} GB, all processes together"]
    if estimate.model_parameters is None:
        lines.append(f"model       {config.model.base!r}: not on this machine, so its size is in none of these figures")
    for device in estimate.devices:
        lines += _device_lines(device)
    lines += _list_lines("learner", [describe_learner(config)]) + _list_lines("opponents", describe_opponents(config))
    lines += _list_lines("note", config_notes(config))
    if estimate.disk_gb_step is not None:
        total = "" if estimate.disk_gb is None else f", {_disk_text(estimate.disk_gb)} to the end"
        step = _disk_text(estimate.disk_gb_step)
        lines.append(f"disk        {step} a gradient step{total}, and the records of the games")
    return lines


def _disk_text(gb: float) -> str:
    # Never kB: an estimate is not that precise.
    return f"{gb:.1f} GB" if gb >= 1 else f"{gb * 1e3:.1f} MB"


def _device_lines(device: "DeviceEstimate") -> list[str]:
    if device.size_gb is None:
        figures = f"{device.taken_gb:.1f} GB and what vLLM takes; --gpu-gb says how large the GPU is"
    else:
        verdict = "" if device.fits else ": DOES NOT FIT"
        figures = f"about {device.taken_gb:.1f} GB of {device.size_gb:.1f}{verdict}"
    lines = [f"{device.name:<11} {figures}"]
    for part in device.parts:
        text = f"{part.gb:6.1f}  {part.what}: {part.explanation}"
        lines += textwrap.wrap(text, _TEXT_WIDTH, initial_indent="  ", subsequent_indent=" " * 10)
    if device.fits:
        return lines
    if sum(part.what.endswith("vLLM") for part in device.parts) > 1:
        return [*lines, f"{'':11} inference.servers = 1 would have one vLLM serve all players"]
    return [*lines, f"{'':11} lower gpu_memory_utilization in inference.options, or trainer.learner.rectangle_tokens"]


def _local_gpu_gb(config: LeagueConfig) -> float | None:
    """Memory of this machine's smallest GPU, if the configuration uses any."""
    if {config.inference.device, config.trainer.device} == {"cpu"}:
        return None
    import torch

    sizes = [torch.cuda.get_device_properties(k).total_memory for k in range(torch.cuda.device_count())]
    return min(sizes) / 1e9 if sizes else None


def _write_new_file(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror}); expected a place for a file") from None


def doctor(
    *,
    run: Run,
    parity: Annotated[
        bool, Option("--parity", help="Compare log-probabilities of backend and learner instead, token by token.")
    ] = False,
    backend: Annotated[str | None, Option(help="With --parity: the backend; by default the league's.")] = None,
    dtype: Annotated[str, Option(help="With --parity: data type that both sides compute in.")] = "float32",
    places: Annotated[int, Option(min=1, help="With --parity: decisions to sample, each in twelve ways.")] = 32,
    as_json: JsonOption = False,
) -> None:
    """Check that this machine can run a league, and that a run's folder or broker works; exits 1 if not.

    --parity takes the league's base model and the newest adapter of each policy, at decisions of its game; without a
    league, a small random model of Nim and two adapters.
    """
    if parity:
        _check_parity(run, backend, dtype, places, as_json)
    from lifecycle.maintenance import run_checks

    findings = list(run_checks(run))
    if as_json:
        print_json(findings)
    else:
        _print_findings((finding.ok, finding.what, finding.found) for finding in findings)
    raise typer.Exit(0 if all(finding.ok for finding in findings) else 1)


def _check_parity(run: Run, backend: str | None, dtype: str, places: int, as_json: bool) -> NoReturn:
    from lifecycle.backends import check_parity
    from lifecycle.parity import PERCENTILES

    report = uvloop.run(check_parity(run, backend, dtype, places))
    if as_json:
        print_json({"agrees": report.agrees, **msgspec.to_builtins(report), "percentiles": PERCENTILES})
    else:
        _print_parity(report)
    raise typer.Exit(0 if report.agrees else 1)


def _print_parity(report: "ParityReport") -> None:
    from lifecycle.parity import PERCENTILES, format_summary

    console = Console()
    ratios = [f"{percentile} %" for percentile in PERCENTILES]
    figures = number_columns("temp.", "top-p", "tokens", "mean", "largest", *ratios, "kept")
    rows = []
    for cell in report.cells:
        found = ["refused", *[""] * (len(figures) - 2)]
        if not cell.refused:
            ratio = (f"{value - 1:+.0e}" for value in cell.ratio)
            found = [f"{cell.tokens:,}", f"{cell.mean:.1e}", f"{cell.largest:.1e}", *ratio, f"{cell.kept:.3f}"]
            found.append("within" if cell.within else "BEYOND")
        rows.append([cell.way.kind, f"{cell.way.temperature:g}", f"{cell.way.top_p:g}", *found])
    print_table(console, ["", *figures, "bounds"], rows, ["kept", "tokens", *ratios[1:-1]])
    console.print(
        "mean, largest: differences in nats; %: percentiles of learner/backend - 1; kept: least mass drawn from"
    )
    for refused in sorted({cell.refused for cell in report.cells if cell.refused}):
        print_line(console, f"not sampled: {refused}")
    print_line(console, format_summary(report))
