"""A proposer writes questions, and solvers answer each several times: the best question is one that half get right.

python examples/run_proposer_solver.py --questions '[{"question": "What is 2+2?", "ground_truth": "4"}]' \
    --num-steps 3 --solver-rollouts 4
"""

import json
from typing import Any

from running import make_parser, play

from arena import (
    Arena,
    Artifact,
    Episode,
    EpisodeRequest,
    EpisodeState,
    GRPOCredit,
    InferenceClient,
    Limits,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
)


def solved(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """1 for a reply that ends with the answer."""
    return {"Solver": float(rollout.steps[0].completion_text.rstrip(" .").endswith(rollout.artifact["answer"]))}


class SolveEpisode(SingleTurnEpisode):
    """One answer to a question."""

    episode_type = "solve"
    role_id = "Solver"
    rubric = Rubric([solved])

    def get_prompt(self, artifact: Any) -> str:
        """The question."""
        return f"{artifact['question']} End with the answer."


def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """1 where half of the solvers are right, 0 where all or none are, or nothing could be asked."""
    rate = rollout.extras.get("pass_rate", 0.0)
    return {"Proposer": 1.0 - 2.0 * abs(rate - 0.5)}


class ProposeEpisode(Episode):
    """A question with its answer, and attempts at it as child episodes."""

    episode_type = "propose"
    rubric = Rubric([goldilocks])

    def __init__(self, solver_rollouts: int = 4) -> None:
        self.solver_rollouts = solver_rollouts

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Propose, then run the attempts; results in ``child_results`` are trained on too."""
        prompt = f"A question like: {artifact['question']}\nReply: question | answer"
        response = await self.call_model("Proposer", prompt, arena)
        question, _, answer = (part.strip() for part in response.text.partition("|"))
        if question and answer:
            attempt = EpisodeRequest("solve", {"question": question, "answer": answer})
            state.child_results += await arena.generate_rollouts([attempt] * self.solver_rollouts)
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """All that the rubric sees beside the model calls; state is hidden from it."""
        rewards = [child.rewards["Solver"] for child in state.child_results if not child.failure]
        return {"pass_rate": sum(rewards) / len(rewards), "solver_rewards": rewards} if rewards else {}


class ProposerSolverArena(Arena):
    """Proposals after known questions."""

    batch_size = 4

    def get_batch(self) -> list[EpisodeRequest]:
        """A proposal after each of the drawn questions."""
        return [EpisodeRequest("propose", known.data) for known in self.stores["questions"].sample(self.batch_size)]


def make_proposals(
    client: InferenceClient, questions: list[dict[str, str]], batch_size: int = 4, solver_rollouts: int = 4
) -> Arena:
    """An arena of proposals: each parent's solvers are compared with each other, proposers with proposers."""
    arena = ProposerSolverArena(client, GRPOCredit(normalize=True), limits=Limits(needs_tokens=False))
    arena.batch_size = batch_size
    arena.add_role(Role("Proposer", "You write short problems of arithmetic.", max_tokens=100))
    arena.add_role(Role("Solver", "You solve problems.", max_tokens=200))
    arena.add_episode("propose", ProposeEpisode(solver_rollouts))
    arena.add_episode("solve", SolveEpisode())
    store = arena.add_store("questions")
    for one in questions:
        store.add(Artifact(one))
    return arena


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--questions", type=json.loads, required=True, help="JSON list of question and ground_truth")
    parser.add_argument("--solver-rollouts", type=int, default=4, help="attempts at a question")
    flags = parser.parse_args()
    play(lambda client: make_proposals(client, flags.questions, flags.batch_size, flags.solver_rollouts), flags)
