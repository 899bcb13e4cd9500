"""A game with listed moves as a tree: what policies are worth, exact best responses to them, and mixtures of them.

For games of two whose chance is all in the deal. Moves at the same time are taken one after the other, the second
without knowledge of the first. Where one's gain is not the other's loss, only what concerns zero-sum games is refused.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from arena.enumerable import ListedGame, ListedSpec
from arena.games.texts import Pieces
from schemas.errors import UsageError

Floats = NDArray[np.float64]
ActionSequence = tuple[tuple[Pieces, int], ...]
"""A row of own choices: what was seen, and which move was made."""

PolicyTable = Mapping[Pieces, Sequence[float]]
"""A policy: what is seen, to a probability of each legal move. Seats that see the same play the same."""
SeatObservation = tuple[int, Pieces]
"""A seat, and what it sees."""


class Node(msgspec.Struct, frozen=True):
    """A place in the tree."""

    values: tuple[float, float] = (0.0, 0.0)
    """What each seat wins where the game is over."""
    seat: int = -1
    """Who moves; -1 where the game is over."""
    seen: Pieces = ()
    moves: tuple[str, ...] = ()
    after: tuple["Node", ...] = ()


class GameTree:
    """All of a game.

    Args:
        spec: Of the game.
        deals: Its first positions with a probability each.
    """

    def __init__(self, spec: ListedSpec[Any], deals: Sequence[tuple[float, Any]]) -> None:
        self._spec = spec
        self.roots = [(chance, self._build_node(state)) for chance, state in deals]
        self.places: dict[Pieces, ListedGame[Any]] = {}
        """By what is seen: a position in which it is seen by whoever is to move."""
        self.moves: dict[Pieces, tuple[str, ...]] = {}
        """By what is seen: the legal moves."""
        for _, state in deals:
            self._collect_positions(state)
        self.is_zero_sum = all(sum(values) == 0.0 for _, root in self.roots for values in _end_values(root))
        self._sequence_before = self._own_sequences()
        self._sequence_indices = [self._index_sequences(seat) for seat in (0, 1)]
        self._payoff_SS = self._sequence_payoffs()

    def _game(self, state: Any) -> ListedGame[Any]:
        return self._spec.game_type(self._spec, 0, state)

    def _build_node(self, state: Any, made: Mapping[int, str] | None = None) -> Node:
        game, made = self._game(state), made or {}
        moving = game.to_move()
        if not moving:
            return Node(values=(float(game.scores()[0]), float(game.scores()[1])))
        seat = next(seat for seat in moving if seat not in made)
        moves = tuple(game.moves(seat))
        after = tuple(self._next_node(game, {**made, seat: move}, state) for move in moves)
        return Node(seat=seat, seen=tuple(game.sees(seat)), moves=moves, after=after)

    def _next_node(self, game: ListedGame[Any], made: Mapping[int, str], state: Any) -> Node:
        is_whole = len(made) == len(game.to_move())
        return self._build_node(game.after(made)) if is_whole else self._build_node(state, made)

    def _collect_positions(self, state: Any) -> None:
        game = self._game(state)
        if not (moving := game.to_move()):
            return
        for seat in moving:
            self.places.setdefault(tuple(game.sees(seat)), game)
            self.moves.setdefault(tuple(game.sees(seat)), tuple(game.moves(seat)))
        choices: list[dict[int, str]] = [{}]
        for seat in moving:
            choices = [{**made, seat: move} for made in choices for move in game.moves(seat)]
        for made in choices:
            self._collect_positions(game.after(made))

    def _own_sequences(self) -> dict[SeatObservation, ActionSequence]:
        """The own choices that lead to what a seat sees: one way each, since players forget nothing."""
        found: dict[SeatObservation, ActionSequence] = {}

        def walk(node: Node, own: tuple[ActionSequence, ...]) -> None:
            if node.seat < 0:
                return
            known = found.setdefault((node.seat, node.seen), own[node.seat])
            assert known == own[node.seat], f"seat {node.seat} forgets how it came to {node.seen}"
            for place, after in enumerate(node.after):
                mine = (*own[node.seat], (node.seen, place))
                walk(after, tuple(mine if seat == node.seat else one for seat, one in enumerate(own)))

        for _, root in self.roots:
            walk(root, ((), ()))
        return found

    def uniform_policy(self) -> dict[Pieces, list[float]]:
        """Every move alike."""
        return {seen: [1 / len(moves)] * len(moves) for seen, moves in self.moves.items()}

    def value(self, first: PolicyTable, second: PolicyTable, winner: int = 0) -> float:
        """What a seat, by default seat 0, wins where seat 0 plays one policy and seat 1 another, on average."""

        def of(node: Node) -> float:
            if node.seat < 0:
                return node.values[winner]
            shares = (first, second)[node.seat][node.seen]
            return sum(share * of(after) for share, after in zip(shares, node.after, strict=True) if share > 0)

        return sum(chance * of(root) for chance, root in self.roots)

    def payoff_matrix(self, policies: Sequence[PolicyTable]) -> Floats:
        """What each policy wins from each other one, on average over both seats: antisymmetric.

        Raises:
            UsageError: one's gain is not the other's loss.
        """
        if not self.is_zero_sum:
            raise UsageError(
                "payoff matrix: found a game that is not zero-sum; expected one's gain to be the other's loss"
            )
        first, second = (np.array([self._realisation_plan(policy, seat) for policy in policies]) for seat in (0, 1))
        value_AA = first @ self._payoff_SS @ second.T
        antisymmetric_AA: Floats = (value_AA - value_AA.T) / 2
        return antisymmetric_AA

    def _index_sequences(self, seat: int) -> dict[ActionSequence, int]:
        """A number for every row of own choices, the empty one first, and each behind the row that it goes on from."""
        found: dict[ActionSequence, int] = {(): 0}
        for (owner, seen), way in self._sequence_before.items():
            if owner == seat:
                for place in range(len(self.moves[seen])):
                    found.setdefault((*way, (seen, place)), len(found))
        return found

    def _sequence_payoffs(self) -> Floats:
        """What seat 0 wins where both seats' choices have led, by the numbers of these, chance included."""
        payoff_SS = np.zeros([len(plan) for plan in self._sequence_indices])

        def walk(node: Node, own: tuple[ActionSequence, ActionSequence], chance: float) -> None:
            if node.seat < 0:
                payoff_SS[self._sequence_indices[0][own[0]], self._sequence_indices[1][own[1]]] += (
                    chance * node.values[0]
                )
                return
            for place, after in enumerate(node.after):
                mine = (*own[node.seat], (node.seen, place))
                walk(after, (mine, own[1]) if node.seat == 0 else (own[0], mine), chance)

        for chance, root in self.roots:
            walk(root, ((), ()), chance)
        return payoff_SS

    def _realisation_plan(self, policy: PolicyTable, seat: int) -> list[float]:
        """How likely a policy makes each row of choices, chance and the other seat left out (von Stengel 1996)."""
        shares = [1.0]
        for way in list(self._sequence_indices[seat])[1:]:
            seen, place = way[-1]
            shares.append(shares[self._sequence_indices[seat][way[:-1]]] * policy[seen][place])
        return shares

    def best_response_value(self, seat: int, policy: PolicyTable) -> float:
        """What the best response in a seat wins from a policy in the other one, on average."""
        reached: dict[Pieces, list[tuple[float, Node]]] = defaultdict(list)

        def collect(node: Node, weight: float) -> None:
            if node.seat < 0 or weight == 0.0:
                return
            if node.seat == seat:
                reached[node.seen].append((weight, node))
            for place, after in enumerate(node.after):
                share = 1.0 if node.seat == seat else policy[node.seen][place]
                collect(after, weight * share)

        for chance, root in self.roots:
            collect(root, chance)
        chosen: dict[Pieces, int] = {}

        def choice(seen: Pieces) -> int:
            if seen not in chosen:
                places = range(len(self.moves[seen]))
                worth = [sum(weight * of(node.after[place]) for weight, node in reached[seen]) for place in places]
                chosen[seen] = max(places, key=worth.__getitem__)
            return chosen[seen]

        def of(node: Node) -> float:
            if node.seat < 0:
                return node.values[seat]
            if node.seat == seat:
                return of(node.after[choice(node.seen)]) if node.seen in reached else 0.0
            shares = policy[node.seen]
            return sum(share * of(after) for share, after in zip(shares, node.after, strict=True) if share > 0)

        return sum(chance * of(root) for chance, root in self.roots)

    def own_value(self, policy: PolicyTable) -> float:
        """What a policy wins from itself, on average over both seats; 0 in zero-sum games."""
        return 0.0 if self.is_zero_sum else sum(self.value(policy, policy, seat) for seat in (0, 1)) / 2

    def exploitability(self, policy: PolicyTable) -> float:
        """What best responses win more from a policy than it wins from itself, on average over both seats.

        NashConv over the number of seats (Lanctot et al. 2017, arXiv 1711.00832): 0 in an equilibrium. In zero-sum
        games what the policy wins from itself cancels out between the seats.
        """
        return (self.best_response_value(0, policy) + self.best_response_value(1, policy)) / 2 - self.own_value(policy)

    def mixture_policy(self, policies: Sequence[PolicyTable], weights: Sequence[float]) -> dict[Pieces, list[float]]:
        """The policy that plays like drawing one of several for each game (Kuhn 1953, theorem 4).

        At what is seen each of them counts as much as it is likely to have come there. Where seats see the same, as at
        moves that are made at once, both have come there alike.
        """
        shares: dict[Pieces, list[float]] = {}
        for (_, seen), way in self._sequence_before.items():
            reach = [
                weight * _sequence_probability(policy, way) for policy, weight in zip(policies, weights, strict=True)
            ]
            total = sum(reach)
            counted = [one / total for one in reach] if total > 0 else list(weights)
            columns = zip(*(policy[seen] for policy in policies), strict=True)
            shares[seen] = [sum(c * p for c, p in zip(counted, column, strict=True)) for column in columns]
        return shares


def _end_values(node: Node) -> Iterator[tuple[float, float]]:
    if node.seat < 0:
        yield node.values
    for after in node.after:
        yield from _end_values(after)


def _sequence_probability(policy: PolicyTable, way: ActionSequence) -> float:
    share = 1.0
    for seen, place in way:
        share *= policy[seen][place]
    return share
