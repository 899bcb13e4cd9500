"""GRPO in plain torch against opponents of a league: rock, paper, scissors over the OpenAI-compatible endpoint.

Nothing of the league is imported: the loop plays sessions against ``league/pfsp`` over HTTP, reports their scores, and
adds its own versions, which then stand on the league's leaderboard. ``docs/environments.md`` has the league's
settings and all commands. The policy is a table: from the opponent's last move to a distribution over the next one.
"""

import argparse
import json
import os
import random
import time
import urllib.error
import urllib.request

import torch

MOVES = ("rock", "paper", "scissors")
PAYOFFS = ((0.0, -1.0, 2.0), (1.0, 0.0, -1.0), (-2.0, 1.0, 0.0))
"""Rock beats scissors for double: the payoff of a row's move against a column's."""
ROUNDS = 3


def post(url: str, path: str, body: dict) -> dict:
    """The server's JSON answer to a JSON body; asks again while the server loads its model or is restarted."""
    token = os.environ["LEAGUE_INFERENCE_TOKEN"]
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise SystemExit(f"{url}{path}: {error.code} {error.read().decode()}") from error
        except OSError as error:
            print(f"{url}: {error}; again in a second", flush=True)
        time.sleep(1)


def play(args: argparse.Namespace, policy: torch.Tensor, session: str) -> tuple[list[int], list[int], float]:
    """One match against the session's opponent: the states met, the moves made, and their total payoff."""
    states, moves, score, seen = [], [], 0.0, []
    for _ in range(ROUNDS):
        state = len(MOVES) if not seen else seen[-1]
        move = int(torch.multinomial(torch.softmax(policy[state], 0), 1))
        past = " ".join(f"{MOVES[mine]} {MOVES[theirs]}" for mine, theirs in zip(moves, seen, strict=True))
        messages = [{"role": "user", "content": f"rock paper scissors {past}"}]
        sampling = {"structured_outputs": {"choice": MOVES}, "seed": random.getrandbits(31), "max_tokens": 8}
        body = {"model": args.model, "messages": messages, "league_session": session, "league_agent": args.agent}
        answer = post(args.url, "/v1/chat/completions", body | sampling)
        theirs = MOVES.index(answer["choices"][0]["message"]["content"].strip())
        states, moves, seen = [*states, state], [*moves, move], [*seen, theirs]
        score += PAYOFFS[move][theirs]
    result = {"session": session, "agent": args.agent, "scores": [score, -score], "reason": "rounds", "length": ROUNDS}
    post(args.url, "/v1/league/results", result)
    return states, moves, score


def train(args: argparse.Namespace) -> torch.Tensor:
    """Train, adding a version to the league every ``--every`` steps; returns the logits, one row a state."""
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    policy = torch.zeros(len(MOVES) + 1, len(MOVES), requires_grad=True)
    optimizer = torch.optim.Adam([policy], lr=0.1)
    for step in range(args.steps):
        if step % args.every == 0:
            post(args.url, "/v1/league/agents", {"agent": args.agent, "version": step})
        group = [play(args, policy.detach(), f"step {step} match {n}") for n in range(args.group)]
        rewards = torch.tensor([score for _, _, score in group])
        # Group-relative advantage: one number a match, for all of its moves.
        advantages = ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).repeat_interleave(ROUNDS)
        states = torch.tensor([state for met, _, _ in group for state in met])
        moves = torch.tensor([move for _, made, _ in group for move in made])
        old = torch.log_softmax(policy.detach(), 1)[states, moves]
        for _ in range(2):
            ratio = torch.exp(torch.log_softmax(policy, 1)[states, moves] - old)
            loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"step {step}: mean score {rewards.mean():+.2f}, loss {loss.item():+.4f}", flush=True)
    post(args.url, "/v1/league/agents", {"agent": args.agent, "version": args.steps})
    return policy.detach()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO against a league's opponents")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="league/pfsp")
    parser.add_argument("--agent", default="grpo", help="name in the league; a new one for every run")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--group", type=int, default=16, help="matches per step")
    parser.add_argument("--every", type=int, default=10, help="steps between versions")
    parser.add_argument("--seed", type=int, default=0)
    print(train(parser.parse_args()).softmax(1))
