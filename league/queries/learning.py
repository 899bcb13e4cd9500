"""Whether a league learned: benchmarks of the newest versions beside those before training, and a verdict in words."""

from collections.abc import Sequence
from typing import Any

_BENCHMARKS_SQL = """
    SELECT b.agent, b.opponent, b.wins, b.games, b.share, b.low, b.high, p.policy, p.version,
           coalesce(a.kind, 'version') AS kind, b.sequence
    FROM benchmark_results b LEFT JOIN policies p ON p.policy || '@' || p.version = b.agent
         LEFT JOIN agents a USING (agent)
    WHERE b.sequence <= ? AND b.games > 0 ORDER BY b.sequence
"""


def paired_benchmarks(connection: Any, at: int) -> list[dict[str, Any]]:
    """Pair the first benchmark of each policy and opponent, or the base model's, with the newest version's.

    ``verdict`` compares the 95 % Wilson intervals: ``better`` or ``worse`` where they are apart, else ``open``.
    """
    read = connection.execute(_BENCHMARKS_SQL, [at])
    names = [column[0] for column in read.description]
    rows = [dict(zip(names, row, strict=True)) for row in read.fetchall()]
    bases = {row["opponent"]: row for row in reversed(rows) if row["kind"] == "base"}
    pairs = []
    for policy, opponent in dict.fromkeys((row["policy"], row["opponent"]) for row in rows if row["policy"]):
        own = [row for row in rows if (row["policy"], row["opponent"]) == (policy, opponent)]
        after = max(own, key=lambda row: (row["version"], row["sequence"]))
        before = bases.get(opponent) or min(own, key=lambda row: (row["version"], row["sequence"]))
        verdict = "better" if after["low"] > before["high"] else "worse" if after["high"] < before["low"] else "open"
        first = before if before is not after else None
        pairs.append({"policy": policy, "opponent": opponent, "before": first, "after": after, "verdict": verdict})
    return pairs


def learning_verdict(pairs: Sequence[dict[str, Any]], seats: int) -> dict[str, Any]:
    """Whether the newest version is better than before, against whom, and against whom it still loses.

    Args:
        pairs: Benchmarks of one policy, by ``paired_benchmarks``.
        seats: Seats of a match; an opponent still wins where the version's interval lies below the share of equals.

    Returns:
        ``verdict`` (``better``, ``worse``, ``open`` or ``unmeasured``); ``headline``; ``text``, a sentence or two; and
        ``pair``, the benchmark that shows it best, or None.
    """
    compared = [pair for pair in pairs if pair["before"] is not None]
    if not compared:
        return {
            "verdict": "unmeasured",
            "headline": "Not measured yet",
            "text": "No benchmark of a trained version has one before it to compare with.",
            "pair": None,
        }
    by_verdict = {name: [pair for pair in compared if pair["verdict"] == name] for name in ("worse", "better", "open")}
    verdict = next(name for name, found in by_verdict.items() if found)
    pair = max(by_verdict[verdict], key=lambda pair: abs(pair["after"]["share"] - pair["before"]["share"]))
    headlines = {"better": "It learned", "worse": "It got worse", "open": "No difference is certain yet"}
    before, after = pair["before"], pair["after"]
    games = f"wins {_percent(after)} of games against {pair['opponent']}"
    if seats == 1:
        games = f"passes {_percent(after)} of episodes"
    text = f"{after['agent']} {games}, {before['agent']} {_percent(before)}"
    text += "; the 95 % intervals overlap." if verdict == "open" else "."
    equal = 1 / max(seats, 2)
    measured = sorted((each["after"] for each in pairs), key=lambda row: row["share"])
    losing = _names([row for row in measured if row["high"] < equal])
    uncertain = _names([row for row in measured if row["low"] <= equal <= row["high"]])
    if seats > 1:
        text += f" It still loses to {losing}." if losing else ""
        text += f" Undecided against {uncertain}: equals win {100 * equal:.0f} %." if uncertain else ""
        text += "" if losing or uncertain else " It loses to no benchmark opponent."
    return {"verdict": verdict, "headline": headlines[verdict], "text": text, "pair": pair}


def _names(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{row['opponent']} ({_percent(row)} won)" for row in rows)


def _percent(row: dict[str, Any]) -> str:
    return f"{100 * row['share']:.0f} %"
