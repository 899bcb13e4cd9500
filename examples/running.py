"""Flags of the scripts ``run_*.py``, and the loop that plays their arenas. Replies of a hosted model have no tokens."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from arena import Arena, InferenceClient, LeagueError, OpenAIClient, VerboseLogger


def make_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the flags that all scripts have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--num-steps", type=int, default=1, help="batches to play")
    parser.add_argument("--batch-size", type=int, default=4, help="episodes of a batch")
    parser.add_argument("--model", default="", help="model at OpenRouter or OpenAI, or of the local server")
    parser.add_argument("--local", action="store_true", help="use a server on this machine, such as vLLM's")
    parser.add_argument("--port", type=int, default=8000, help="its port")
    parser.add_argument("--verbose", action="store_true", help="log every episode and call to NAME_run.log")
    return parser


def play(make_arena: Callable[[InferenceClient], Arena], flags: argparse.Namespace) -> None:
    """Play the arena step by step and print the mean rewards and the number of training records."""
    try:
        asyncio.run(_play(make_arena, flags))
    except LeagueError as error:
        sys.exit(f"error: {error}")


async def _play(make_arena: Callable[[InferenceClient], Arena], flags: argparse.Namespace) -> None:
    named = {"model": flags.model} if flags.model else {}
    client = OpenAIClient.for_local(flags.port, **named) if flags.local else OpenAIClient.for_openrouter(**named)
    log = Path(sys.argv[0]).stem.removeprefix("run_") + "_run.log"
    with VerboseLogger(log) if flags.verbose else nullcontext() as observer:
        arena = make_arena(client)
        arena.observer = observer
        async for batch in arena.run(num_steps=flags.num_steps):
            rewards = ", ".join(f"{name} {reward:+.2f}" for name, reward in batch.rewards.items())
            print(f"step {batch.step + 1}: {rewards or 'no rewards'} · {len(batch.records)} training records")
            for episode, reason in batch.failures.items():
                print(f"  {episode} failed: {reason}", file=sys.stderr)
    await client.close()
