"""The league's state: a pure, total fold of its history.

- ``league_state``      the state at one sequence; one small handler per event type
- ``saved_state``       its snapshot form, and its smaller parts: spending, pauses, workers, sessions
- ``standings_rows``    the tables of the standings: agents with their ratings, wins and losses, and mean rewards, by
                        which populations may choose
- ``evaluation_table``  evaluations: requests, results, verdicts
- ``consumption``       the trainers' positions in ``EXPERIENCE``, and matches begun but not trained on
- ``novelty``           how new an agent's play is
- ``artifacts``         artifacts that matches added to an arena's stores
"""

from league.state.league_state import LeagueState
from league.state.saved_state import ActivityChange, LeagueStateSnapshot, PublishedVersion, WorkerState

__all__ = ["ActivityChange", "LeagueState", "LeagueStateSnapshot", "PublishedVersion", "WorkerState"]
