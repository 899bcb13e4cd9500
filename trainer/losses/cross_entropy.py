"""Cross-entropy: imitation of what was chosen.

Shape suffix: W choice.
"""

import torch

from trainer.losses import LossInputs, LossValue, Objective, register


@register("cross_entropy")
class CrossEntropy(Objective, frozen=True, kw_only=True):
    """``-A * logprob - entropy * H``, whichever policy chose, so without an importance ratio (Pomerleau 1991).

    With the advantage ``constant`` all choices count the same. Expert iteration adds it to any other loss.
    """

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice; none is clipped."""
        return LossValue(-terms.advantage_W * terms.logprob_W, torch.zeros_like(terms.logprob_W, dtype=torch.bool))
