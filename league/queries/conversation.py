"""Decisions of models as they were kept: the conversation of a match, and what a gradient step was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from league.log.jetstream import JetStreamLog
from league.projections.tables import sql_literal
from league.queries.tables import query_history
from league.queries.terminal import Console
from league.run import Run

DECISION_COLUMNS = (
    "match_id, seat, agent, version, call, prompt, thoughts, reply, second_reply, move, fault, legal_moves, logprob, "
    "choices, opponents, ratings, score, step, outcome, reward, advantage"
)
"""Columns of ``decisions`` that people are shown."""


def match_condition(match_id: str) -> str:
    """SQL that selects the decisions of a match, in order."""
    return f"WHERE match_id = {sql_literal(match_id)} ORDER BY clock, call, seat"


async def read_conversation(run: Run, history: JetStreamLog, match_id: str) -> list[dict[str, Any]]:
    """The kept decisions of a match, in order; raises as ``query_history`` does."""
    result = await query_history(run, history, f"SELECT {DECISION_COLUMNS} FROM decisions {match_condition(match_id)}")
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def describe_credit(decision: Mapping[str, Any]) -> str:
    """Reward, advantage and step of a decision in one line; empty without any."""
    parts = []
    if decision["reward"] is not None:
        parts += [f"reward {decision['reward']:g}", f"advantage {decision['advantage']:+.3g}"]
    if decision["outcome"] is not None:
        did = "trained on in" if decision["outcome"] == "trained" else f"{decision['outcome']}, by"
        parts.append(f"{did} step {decision['step']}")
    return ", ".join(parts)


def print_conversation(console: Console, decisions: Sequence[Mapping[str, Any]]) -> None:
    """Print prompts and replies; of a prompt that continues the seat's one before, only what is new."""

    def print_line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if decisions:
        print_line("\ndecisions of models; of a training match, those of the seats that are trained on")
    before: dict[int, str] = {}
    for decision in decisions:
        seat, prompt = decision["seat"], decision["prompt"]
        previous, before[seat] = before.get(seat, ""), prompt
        is_continued = previous != "" and prompt.startswith(previous)
        fault = f"fault: {decision['fault']}" if decision["fault"] else ""
        chance = f"log-probability {decision['logprob']:.3g}" if decision["choices"] else ""
        credit = ", ".join(filter(None, (fault, describe_credit(decision), chance)))
        where = f"seat {seat}, {decision['agent']}, decision {decision['call'] + 1}"
        print_line(f"\n── {where}{f': {credit}' if credit else ''}")
        print_line(f"… {prompt[len(previous) :]}" if is_continued else prompt)
        if decision["thoughts"]:
            print_line(f"── thoughts\n{decision['thoughts']}")
        print_line(f"── reply\n{decision['reply']}")
        if decision["second_reply"]:
            print_line(f"── reply to a second question\n{decision['second_reply']}")
        if decision["move"] is not None:
            print_line(f"── move: {decision['move']}")
