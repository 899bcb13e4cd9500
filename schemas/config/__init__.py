"""The configuration of a league: one TOML file, decoded into structs that reject what they don't know.

A plugin (game, sampler, rating system, reward, advantage estimator, loss) has a ``name`` and a ``settings`` table;
the plugin's own struct decodes the table, through ``convert``, so that one error form serves all.

- ``base``        plugins by name; mappings to structs and back; checks
- ``foreign_keys``  keys of other programs, and what they are called here
- ``agents``      ``agents``, ``policies``, ``schedule``
- ``evaluation``  ``rollout``, ``episodes``, ``matchmaking``, ``ratings``, ``evaluation``, ``promotion``
- ``training``    ``model``, ``inference``, ``prompts``, ``experience``, ``trainer``, ``stop``
- ``history``     ``blobs``, ``history``, ``tracker``, ``alarms``
- ``league``      all of them together, and the file that they are read from

All of them can be imported from here.
"""

from schemas.config.agents import *
from schemas.config.base import *
from schemas.config.evaluation import *
from schemas.config.history import *
from schemas.config.league import *
from schemas.config.training import *
