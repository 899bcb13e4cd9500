"""Drawing tokens: whatever rows stand beside it, a row draws from its own tokens under its own distribution."""

import math

import pytest
import torch

from inference import sampler
from inference.sampler import RowSampling, nucleus_mask, sample_tokens

VOCABULARY, WIDTH = 40, 16
ALMOST_ONE = math.nextafter(1, 0)
CHOICES = [None, (3, 9, 30), None, (0, 1), (7, 8, 9, 10, 11, 39), None]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


HEAD_VD = numbers(VOCABULARY, WIDTH, seed=1)
HIDDEN_RD = numbers(len(CHOICES), WIDTH)


def wishes(uniform: float, top_p: float = 1.0) -> list[RowSampling]:
    return [RowSampling(choices, 0.5 + 0.2 * row, uniform, top_p) for row, choices in enumerate(CHOICES)]


def probabilities(row: int, choices: tuple[int, ...] | None, temperature: float) -> dict[int, float]:
    tokens = range(VOCABULARY) if choices is None else choices
    logits = (HIDDEN_RD[row] @ HEAD_VD.T).double()[list(tokens)] / temperature
    return dict(zip(tokens, logits.softmax(-1).tolist(), strict=True))


@pytest.mark.parametrize("dense_limit", [0, 4096])
@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.77, ALMOST_ONE])
def test_each_row_draws_where_its_own_cumulative_probability_passes_its_number(monkeypatch, dense_limit, uniform):
    monkeypatch.setattr(sampler, "DENSE_LIMIT", dense_limit)
    draws = sample_tokens(HEAD_VD, HIDDEN_RD, wishes(uniform))
    for row, wish in enumerate(wishes(uniform)):
        likely, below = probabilities(row, wish.choices, wish.temperature), 0.0
        for token, probability in likely.items():
            if token == draws.tokens[row]:
                break
            below += probability
        assert below <= uniform + 1e-6
        assert below + likely[draws.tokens[row]] >= uniform - 1e-6
        assert draws.logprobs[row] == pytest.approx(math.log(likely[draws.tokens[row]]), abs=1e-5)
    assert draws.nuclei == {}


def test_row_alone_draws_what_it_draws_in_a_crowd():
    crowd = sample_tokens(HEAD_VD, HIDDEN_RD, wishes(0.6, 0.8))
    for row, wish in enumerate(wishes(0.6, 0.8)):
        alone = sample_tokens(HEAD_VD, HIDDEN_RD[row : row + 1], [wish])
        assert alone.tokens == [crowd.tokens[row]]
        assert alone.logprobs == pytest.approx([crowd.logprobs[row]], abs=1e-6)
        assert alone.nuclei[0] == crowd.nuclei[row]


@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE])
def test_nuclei_are_told_for_the_rows_that_have_one_and_drawn_from(uniform):
    asked = [wish._replace(top_p=(0.5, 1.0)[row % 2]) for row, wish in enumerate(wishes(uniform))]
    draws = sample_tokens(HEAD_VD, HIDDEN_RD, asked)
    assert sorted(draws.nuclei) == [0, 2, 4]
    for row, kept in draws.nuclei.items():
        likely = probabilities(row, asked[row].choices, asked[row].temperature)
        ranked = sorted(likely, key=likely.__getitem__, reverse=True)
        fewest = next(n for n in range(1, len(ranked) + 1) if sum(likely[token] for token in ranked[:n]) >= 0.5)
        assert kept == sorted(ranked[:fewest])
        assert draws.tokens[row] in kept
        share = likely[draws.tokens[row]] / sum(likely[token] for token in kept)
        assert draws.logprobs[row] == pytest.approx(math.log(share), abs=1e-5)


def test_of_equally_likely_tokens_the_first_are_kept():
    scores_RA = torch.zeros(2, 5, dtype=torch.float64)
    scores_RA[1, 3:] = -torch.inf
    kept_RA = nucleus_mask(scores_RA, torch.tensor([0.55, 0.3], dtype=torch.float64))
    assert kept_RA.tolist() == [[True, True, True, False, False], [True, False, False, False, False]]


def test_scores_that_are_not_numbers_give_such_a_logprob_and_a_token_of_the_vocabulary():
    hidden_RD = HIDDEN_RD.clone()
    hidden_RD[:2] = torch.nan
    draws = sample_tokens(HEAD_VD, hidden_RD, wishes(0.5, 0.9))
    assert [math.isnan(logprob) for logprob in draws.logprobs] == [True, True, False, False, False, False]
    assert all(0 <= token < VOCABULARY for token in draws.tokens)
