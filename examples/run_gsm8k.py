"""Word problems in the manner of GSM8K: one question, one answer, several attempts at each that are compared.

python examples/run_gsm8k.py --num-steps 2 --batch-size 2 --attempts 8 --local --port 8000
python examples/run_gsm8k.py --questions '[{"question": "How many legs have 3 cats?", "answer": "12"}]'
"""

import json
import re
from typing import Any

from running import make_parser, play

from arena import (
    Arena,
    Artifact,
    EpisodeRequest,
    GRPOCredit,
    InferenceClient,
    Limits,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
)

PROBLEMS = [
    {"question": "Ann has 3 bags of 4 apples and eats 2. How many are left?", "answer": "10"},
    {"question": "A book of 120 pages is read at 15 a day. How many days does it take?", "answer": "8"},
]


def correctness(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """1 if the last number of the reply is the answer."""
    numbers = re.findall(r"-?\d+", rollout.steps[0].completion_text.replace(",", ""))
    return {"Solver": float(bool(numbers) and numbers[-1] == rollout.artifact["answer"])}


def brevity(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """A bonus that ends at a hundred words."""
    return {"Solver": max(0.0, 0.5 - len(rollout.steps[0].completion_text.split()) / 200)}


class WordProblemEpisode(SingleTurnEpisode):
    """One problem, answered by the arena's only role."""

    episode_type = "gsm8k"
    rubric = Rubric([correctness, brevity], weights=[1.0, 0.5])

    def get_prompt(self, artifact: Any) -> str:
        """The problem."""
        return str(artifact["question"])


class WordProblemArena(Arena):
    """Several attempts at each problem, as one group."""

    batch_size = 2
    attempts = 4

    def get_batch(self) -> list[EpisodeRequest]:
        """The attempts at drawn problems: those of one ``group`` are compared with each other."""
        problems = self.stores["problems"].sample(self.batch_size)
        requests = [EpisodeRequest("gsm8k", problem.data, group=problem.id) for problem in problems]
        return [request for request in requests for _ in range(self.attempts)]


def make_word_problems(
    client: InferenceClient, problems: list[dict[str, str]], batch_size: int = 2, attempts: int = 4
) -> Arena:
    """An arena of word problems."""
    arena = WordProblemArena(client, GRPOCredit(), limits=Limits(needs_tokens=False))
    arena.batch_size, arena.attempts = batch_size, attempts
    arena.add_role(Role("Solver", "Think step by step. End with the number.", max_tokens=300))
    arena.add_episode("gsm8k", WordProblemEpisode())
    store = arena.add_store("problems")
    for one in problems:
        store.add(Artifact(one))
    return arena


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--questions", type=json.loads, default=PROBLEMS, help="JSON list of question and answer")
    parser.add_argument("--attempts", type=int, default=4, help="attempts at a problem")
    flags = parser.parse_args()
    play(lambda client: make_word_problems(client, flags.questions, flags.batch_size, flags.attempts), flags)
