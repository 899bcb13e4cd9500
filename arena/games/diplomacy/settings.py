"""The ``[game]`` settings of Diplomacy."""

from typing import Literal

import msgspec

from schemas.errors import ConfigError


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a game ends and how it is scored; defaults are those of the league specification."""

    max_year: int = 1905
    """Last year that is played, its adjustments included."""
    win_bonus: float = 5.0
    """Points for a sole leader with at least ``winner_threshold_sc`` centres."""
    winner_threshold_sc: int = 10
    """Supply centres that a sole leader needs for the bonus; the map has 34."""
    text: Literal["compact", "signposted", "egocentric"] = "compact"
    """How models are asked and answer: in the few pieces of ``text``, in these with what each unit can see from where
    it stands (``signposts``), or in JSON and tags, for large models."""
    analysis: int = 0
    """Most tokens that a model may write of its own before its orders; only ``egocentric`` asks for them."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: the message names the key, what was found and what was expected.
        """
        # The package declares a draw after a hundred years.
        if not 1901 <= self.max_year <= 1999:
            raise ConfigError(f"max_year: found {self.max_year}; expected a year from 1901 to 1999")
        if not 1 <= self.winner_threshold_sc <= 34:
            raise ConfigError(f"winner_threshold_sc: found {self.winner_threshold_sc}; expected 1 to 34")
        if self.analysis < 0 or (self.analysis and self.text != "egocentric"):
            found = f"{self.analysis} with text = {self.text!r}"
            raise ConfigError(f"analysis: found {found}; expected 0 or more, and above 0 with text = 'egocentric'")
        if not self.win_bonus >= 0:
            raise ConfigError(f"win_bonus: found {self.win_bonus}; expected 0 or more")
