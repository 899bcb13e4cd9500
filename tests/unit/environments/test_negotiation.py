"""Negotiations: moves and what they come to, payoffs by hand, and that values stay with whom they belong to."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.environments import ArenaOptions, make_arena
from arena.environments.negotiation import Deal, Settings, Trade, draw_deal, efficiency, parse_move, parse_offer
from schemas.config import Plugin
from schemas.episodes import EpisodeRequest, GenerateResult, Message
from schemas.errors import ConfigError
from trainer.advantages.total_reward import CREDIT_ASSIGNERS

DEAL = Deal(
    holdings={"Player0": {"wood": 3, "gold": 1}, "Player1": {"wood": 1, "gold": 2}},
    values={"Player0": {"wood": 1, "gold": 4}, "Player1": {"wood": 3, "gold": 2}},
)
"""Player0 likes gold, Player1 wood. The goods of the other are worth 1 + 8 = 9 to the one, 9 + 2 = 11 to the next."""


def opened(replies: Sequence[str], credit: str = "rae", **settings: Any) -> Arena:
    opening = ArenaOptions(credit_assigner=CREDIT_ASSIGNERS.build(Plugin(name=credit)))
    return make_arena("negotiation", settings).open(ScriptedClient(*replies), opening)


def negotiated(*replies: str, turns: int = 6, deal: Any = DEAL) -> GenerateResult:
    request = EpisodeRequest("negotiation", msgspec.to_builtins(deal))
    return asyncio.run(opened(replies, turns=turns).generate_rollouts([request]))[0]


OFFER = "offer: give 2 wood, take 1 gold"
SPEC = make_arena("negotiation", {})


def test_an_accepted_offer_pays_each_its_own_gain_as_a_share_of_the_others_goods() -> None:
    result = negotiated(OFFER, "accept")

    # Player0: 4 - 2 = 2 of 9. Player1: 6 - 2 = 4 of 11.
    assert result.rewards == pytest.approx({"Player0": 2 / 9, "Player1": 4 / 11})
    assert SPEC.score(result) == pytest.approx((2 / 9, 4 / 11))
    # At best Player1 gets 3 wood, for 3 · (3 - 1), and Player0 2 gold, for 2 · (4 - 2): 10, of which 6 were made.
    facts = {"deal": 1.0, "efficiency": 0.6, "invalid.Player0": 0.0, "invalid.Player1": 0.0}
    shares = {"gained.Player0": 2 / 9, "gained.Player1": 4 / 11}
    assert SPEC.metrics(result) == pytest.approx({**shares, **facts})


def test_a_bad_deal_costs_who_accepts_it() -> None:
    result = negotiated("offer: give nothing, take 2 gold and 1 wood", "accept")

    assert result.rewards == pytest.approx({"Player0": 1.0, "Player1": -7 / 11})


def test_without_a_deal_nobody_gains_and_turns_are_bounded() -> None:
    result = negotiated("reject", OFFER, turns=4)

    assert [step.completion_text for step in result.rollout.steps] == ["reject", OFFER] * 2
    assert result.rewards == {"Player0": 0.0, "Player1": 0.0}
    assert SPEC.metrics(result)["efficiency"] == 0.0


def heard(result: GenerateResult, at: int) -> str:
    return result.rollout.steps[at].prompt[-1].content


def test_an_offer_stands_for_the_next_turn_only() -> None:
    result = negotiated(OFFER, "reject", "reject", "accept", turns=4)

    assert result.rewards == {"Player0": 0.0, "Player1": 0.0}
    assert result.rollout.extras["invalid"] == {"Player0": 0, "Player1": 1}
    later = negotiated(OFFER, "offer: give 1 gold, take 3 wood", "accept")
    # Player0 gives 3 wood for 1 gold: 4 - 3. Player1 gives 2 for 9.
    assert later.rewards == pytest.approx({"Player0": 1 / 9, "Player1": 7 / 11})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("accept", "Invalid: Nothing to accept."),
        ("offer: give 4 wood, take 1 gold", "Invalid: Player0 has no 4 wood."),
        ("offer: give 1 wood, take 3 gold", "Invalid: Player1 has no 3 gold."),
        ("offer: give 1 silver, take 1 gold", "Invalid: Player0 has no 1 silver."),
        ("offer: give nothing, take 0 gold", "Invalid: Nothing was offered."),
        ("offer: give wood, take gold", "Invalid: Not understood."),
        ("offer: give -1 wood, take 1 gold", "Invalid: Not understood."),
        ("How about a trade?", "Invalid: Not understood."),
    ],
)
def test_what_cannot_be_done_is_told_to_all_and_counted_and_costs_the_turn(said: str, why: str) -> None:
    result = negotiated(said, "reject", turns=3)

    assert heard(result, 1).splitlines() == [
        "Player0 has 3 wood 1 gold.",
        "Player1 has 1 wood 2 gold.",
        "",
        f"Player0: {said}",
        "",
        why,
        "",
        "You are Player1. You value wood 3, gold 2.",
    ]
    assert why in heard(result, 2)
    assert SPEC.metrics(result)["invalid.Player0"] == 2.0
    assert SPEC.metrics(result)["invalid.Player1"] == 0.0


def test_turns_that_come_to_nothing_can_cost_something() -> None:
    request = EpisodeRequest("negotiation", msgspec.to_builtins(DEAL))
    arena = opened(["?", OFFER, "Yes!", "reject"], turns=4, invalid_cost=0.1)
    result = asyncio.run(arena.generate_rollouts([request]))[0]

    # Player0 took two turns in vain. Of Player1's goods there are no 2 wood, so that one of its turns was in vain too.
    assert result.rewards == pytest.approx({"Player0": -0.2, "Player1": -0.1})


@pytest.mark.parametrize(
    ("said", "give", "take"),
    [
        (OFFER, {"wood": 2}, {"gold": 1}),
        ("I think so.\n**Offer: give 2 wood and 1 gold, take 3 tea.**", {"wood": 2, "gold": 1}, {"tea": 3}),
        ("offer give 1 wood 1 wood take nothing", {"wood": 2}, {}),
        ("OFFER: give 1 wood, 2 gold, take 1 tea, and 2 salt", {"wood": 1, "gold": 2}, {"tea": 1, "salt": 2}),
    ],
)
def test_offers_are_read_whatever_stands_around_them(said: str, give: dict[str, int], take: dict[str, int]) -> None:
    assert parse_offer(parse_move(said), "Player1") == Trade("Player1", give, take)


def test_a_role_never_sees_what_goods_are_worth_to_the_other() -> None:
    result = negotiated(OFFER, "offer: give 1 gold, take 2 wood", "reject", "accept", "reject", turns=5)

    seen = {"Player0": "", "Player1": ""}
    for step in result.rollout.steps:
        seen[step.role_id] += "".join(message.content for message in step.prompt)
    for me, text in seen.items():
        assert text.count("You value") == sum(step.role_id == me for step in result.rollout.steps)
        assert ("You value wood 1, gold 4." in text) == (me == "Player0")
        assert ("You value wood 3, gold 2." in text) == (me == "Player1")


@given(st.integers(0, 10_000), st.lists(st.sampled_from([OFFER, "accept", "reject", "?"]), min_size=6, max_size=6))
def test_prompts_of_a_player_do_not_depend_on_what_goods_are_worth_to_the_other(seed: int, said: list[str]) -> None:
    deal = draw_deal(Settings(), Random(seed))
    changed = {**deal.values, "Player1": {name: value + 1 for name, value in deal.values["Player1"].items()}}
    results = [negotiated(*said, deal=given) for given in (deal, Deal(deal.holdings, changed))]

    mine, same = ([s.prompt for s in result.rollout.steps if s.role_id == "Player0"] for result in results)
    assert mine == same


@pytest.mark.parametrize("artifact", [{"holdings": {}, "values": {}}, {"holdings": {}}, "deal"])
def test_a_deal_that_is_none_fails_its_episode(artifact: Any) -> None:
    result = negotiated("reject", deal=artifact)

    assert result.failure
    assert result.rewards == {}


def test_the_seed_decides_all_deals() -> None:
    def deals(seed: int) -> list[Any]:
        arena = make_arena("negotiation", {"batch_size": 20}).open(ScriptedClient("reject"), ArenaOptions(seed=seed))
        return [request.artifact for request in arena.get_batch()]

    assert deals(1) == deals(1) != deals(2)
    drawn = [msgspec.convert(deal, Deal) for deal in deals(1)]
    assert {units for deal in drawn for goods in deal.holdings.values() for units in goods.values()} == {1, 2, 3}
    assert {value for deal in drawn for goods in deal.values.values() for value in goods.values()} == {1, 2, 3, 4, 5}


def test_an_episode_without_a_deal_draws_one_by_its_seed() -> None:
    arena = opened(["reject"])
    first, second = (asyncio.run(arena.run_episode("negotiation")) for _ in range(2))

    assert not first.failure
    assert first.rollout.extras["deal"] != second.rollout.extras["deal"]


@given(st.integers(0, 100_000))
def test_no_trade_is_more_than_efficient(seed: int) -> None:
    rng = Random(seed)
    deal = draw_deal(Settings(), rng)
    give, take = ({n: rng.randint(0, units) for n, units in deal.holdings[p].items()} for p in ("Player0", "Player1"))

    assert efficiency(deal, Trade("Player0", give, take)) <= 1.0


def test_where_nothing_can_be_gained_no_deal_is_efficient() -> None:
    same = {"Player0": {"wood": 2, "gold": 2}, "Player1": {"wood": 2, "gold": 2}}

    assert efficiency(Deal(same, same), None) == 1.0


def test_baselines_are_of_a_player_as_worked_out_by_hand() -> None:
    arena = opened([OFFER, "accept"], batch_size=1)
    arena.get_batch = lambda: [EpisodeRequest("negotiation", msgspec.to_builtins(DEAL))]  # type: ignore[method-assign]
    first, second = (asyncio.run(arena.step()) for _ in range(2))

    assert [r.advantage for r in first.records] == pytest.approx([2 / 9, 4 / 11])
    assert first.credit_state == pytest.approx({"negotiation/Player0": 0.1 / 9, "negotiation/Player1": 0.2 / 11})
    assert [r.advantage for r in second.records] == pytest.approx([1.9 / 9, 3.8 / 11])


def test_negotiations_of_the_same_deal_can_be_a_group() -> None:
    requests = opened(["reject"], batch_size=2, group_size=2).get_batch()

    assert [request.group for request in requests] == ["deal-1", "deal-1", "deal-2", "deal-2"]
    assert requests[0].artifact == requests[1].artifact != requests[2].artifact


def test_improvised_turns_are_all_valid_and_about_half_come_to_a_deal() -> None:
    spec = make_arena("negotiation", {"batch_size": 200})
    rng = Random(3)

    def reply(heard: Sequence[Message]) -> str:
        return spec.improvise("Player0" if "You are Player0" in heard[-1].content else "Player1", heard, rng)

    arena = spec.open(ScriptedClient.from_function(reply))
    facts = [spec.metrics(result) for result in asyncio.run(arena.generate_rollouts(arena.get_batch()))]

    assert sum(fact["invalid.Player0"] + fact["invalid.Player1"] for fact in facts) == 0
    assert 0.5 < sum(fact["deal"] for fact in facts) / 200 < 0.95
    assert abs(sum(fact["gained.Player0"] + fact["gained.Player1"] for fact in facts) / 400) < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"turns": 1}, "turns: 1; expected 2 or more"),
        ({"most": 0}, "most: 0; expected 1 or more"),
        ({"resources": ["wood"]}, "expected two or more different words"),
        ({"resources": ["wood", "wood"]}, "expected two or more different words"),
        ({"resources": ["wood", "and"]}, "expected two or more different words"),
        ({"resources": ["wood", "2x"]}, "expected two or more different words"),
        ({"max_tokens": 0}, "max_tokens: 0"),
        ({"invalid_cost": 2}, "invalid_cost: 2"),
    ],
)
def test_bad_settings_are_refused_with_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_arena("negotiation", settings)
