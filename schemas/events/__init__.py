"""The facts of a league's history: immutable, past tense, tagged by ``type``, JSON on the wire.

Every event has a deterministic ``key``: publishing the same fact twice gives the same key, so that the broker and
every fold can drop the copy. New fields get defaults; a changed meaning gets a new schema version (``codec``).

- ``history``   the league itself: opening, configuration, pauses, branches, imports, archives, snapshots; workers
- ``agents``    registration, checkpoints, versions of external agents, retirement
- ``match``     draws of opponents, sessions, results, failures, voids, requests to remote agents, stored artifacts
- ``rating``    ratings, evaluations, promotions
- ``training``  published policies, gradient steps, resets, ends of training
- ``base``      what all events have

All of them can be imported from here.
"""

from schemas.events.agents import *
from schemas.events.base import Event as Event
from schemas.events.history import *
from schemas.events.match import *
from schemas.events.rating import *
from schemas.events.training import *

EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
"""Every event by its tag."""
