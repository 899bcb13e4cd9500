"""The league's ``tic_tac_toe`` as an environment of verifiers."""

from league_environments import export

LeagueTaskset, LeagueEnv = export("tic_tac_toe")
__all__ = ["LeagueEnv", "LeagueTaskset"]
