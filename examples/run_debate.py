"""A debate: two roles of one model speak in turn, and a judge, which is not trained, names the winner.

python examples/run_debate.py "AI helps people" "Cities need fewer cars" --num-steps 5 --batch-size 4
python examples/run_debate.py "AI helps people" --local --port 8000 --verbose
"""

from typing import Any

from running import make_parser, play

from arena import (
    AlternatingRolesEpisode,
    Arena,
    Artifact,
    EpisodeRequest,
    EpisodeState,
    InferenceClient,
    Limits,
    RAECredit,
    Role,
    Rollout,
    Rubric,
)


async def judged(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Ask a judge: a call without a role, whose reply is not trained on. A reply that names no side is a draw."""
    speeches = "\n".join(f"{step.role_id}: {step.completion_text}" for step in rollout.steps)
    question = f"{speeches}\n\nWho argued better, Aff or Neg? Reply with one word."
    verdict = (await arena.call_model([{"role": "user", "content": question}], temperature=0.1)).text.strip(" .*\n")
    if verdict not in ("Aff", "Neg"):
        return {"Aff": 0.0, "Neg": 0.0}
    return {"Aff": 1.0, "Neg": -1.0} if verdict == "Aff" else {"Aff": -1.0, "Neg": 1.0}


class DebateEpisode(AlternatingRolesEpisode):
    """Speeches in turn."""

    episode_type = "debate"
    role_ids = ("Aff", "Neg")
    rubric = Rubric([judged])

    def __init__(self, num_rounds: int = 3) -> None:
        super().__init__(max_turns=2 * num_rounds)

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """The topic, to both sides."""
        return f"Topic: {artifact['topic']}"


class DebateArena(Arena):
    """Debates about the topics of a store."""

    batch_size = 4

    def get_batch(self) -> list[EpisodeRequest]:
        """A debate about each of the drawn topics."""
        return [EpisodeRequest("debate", topic.data) for topic in self.stores["topics"].sample(self.batch_size)]


def make_debates(client: InferenceClient, topics: list[str], batch_size: int = 4) -> Arena:
    """An arena of debates. Each side's baseline is what it earned so far."""
    arena = DebateArena(client, RAECredit(decay=0.95), limits=Limits(needs_tokens=False))
    arena.batch_size = batch_size
    arena.add_role(Role("Aff", "You argue for the topic. Be brief.", max_tokens=200))
    arena.add_role(Role("Neg", "You argue against the topic. Be brief.", max_tokens=200))
    arena.add_episode("debate", DebateEpisode(num_rounds=2))
    store = arena.add_store("topics")
    for topic in topics:
        store.add(Artifact({"topic": topic}))
    return arena


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("topics", nargs="+")
    flags = parser.parse_args()
    play(lambda client: make_debates(client, flags.topics, flags.batch_size), flags)
