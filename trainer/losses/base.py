"""The protocol of a loss, the registry, and the distribution over allowed tokens that all losses start from.

Only branches, the positions where more than one token was allowed, enter a loss: forced tokens carry no choice.
Log-probabilities are renormalised over the allowed tokens at the temperature the token was sampled at, exactly as the
sampler drew it; over the whole vocabulary the importance ratios would be wrong.

Shape suffixes: W branch, N allowed token of a branch (all branches' lists one after the other); U branch over the whole
vocabulary, V vocabulary.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from schemas.plugins import Registry


class Terms(NamedTuple):
    """What a loss may look at, per branch."""

    logprob_W: Tensor
    """Log-probability (nats) of the sampled token under the current weights."""
    old_logprob_W: Tensor
    """The same under the weights and distribution it was sampled from."""
    entropy_W: Tensor
    """Entropy (nats) of the current distribution over the allowed tokens."""
    advantage_W: Tensor

    def ratio_W(self) -> Tensor:
        """Raw importance ratio, current over old probability."""
        return (self.logprob_W - self.old_logprob_W).exp()


class LossValue(NamedTuple):
    """A loss per branch, before the mean over a minibatch's branches."""

    loss_W: Tensor
    clipped_W: Tensor
    """True where a bound on the ratio changed the gradient."""


class Loss(Protocol):
    """A policy-gradient objective, to be minimised."""

    def __call__(self, terms: Terms) -> LossValue:
        """Loss of each branch."""


LOSSES: Registry[Loss] = Registry("trainer.loss", "trainer.losses")
register = LOSSES.register


def allowed_distribution(
    logits_N: Tensor, row_N: Tensor, chosen_W: Tensor, temperature_W: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every branch, over its allowed tokens only.

    The lists stay ragged, so no masked entry exists whose ``-inf * 0`` would make the entropy NaN.

    Args:
        logits_N: logits of the allowed tokens.
        row_N: which branch each belongs to, ascending.
        chosen_W: where each branch's sampled token stands in ``logits_N``.
        temperature_W: sampling temperature.

    Returns:
        Log-probabilities [W] and entropies [W] in nats.
    """
    scaled_N = logits_N / temperature_W[row_N]
    zeros_W = scaled_N.new_zeros(len(temperature_W))
    top_W = zeros_W.scatter_reduce(0, row_N, scaled_N.detach(), "amax", include_self=False)
    centred_N = scaled_N - top_W[row_N]
    logprob_N = centred_N - zeros_W.index_add(0, row_N, centred_N.exp()).log()[row_N]
    entropy_W = -zeros_W.index_add(0, row_N, logprob_N.exp() * logprob_N)
    return logprob_N[chosen_W], entropy_W


def whole_distribution(logits_UV: Tensor, chosen_U: Tensor, temperature_U: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of branches over the whole vocabulary, in nats: each [U].

    Args:
        logits_UV: all logits.
        chosen_U: the sampled tokens.
        temperature_U: sampling temperature.
    """
    logprob_UV = (logits_UV / temperature_U[:, None]).log_softmax(-1)
    return logprob_UV.gather(1, chosen_U[:, None])[:, 0], -(logprob_UV.exp() * logprob_UV).sum(-1)
