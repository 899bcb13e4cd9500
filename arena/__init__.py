"""How one match or episode is played. This package imports no broker, database or tensor library.

``from arena import …`` is the public interface for environments of your own: the names of ``api``, which stay. All else
may change between releases. ``docs/write-environment.md`` shows it with complete examples.

- ``api``               the public interface
- ``games/``            one package or file per game, behind ``games.base.Game``
- ``enumerable/``       base of games whose legal moves can be listed
- ``bots/``             scripted agents, which never call a model
- ``prompts/``          chat templates of model families, and extraction of answers from replies
- ``constraints/``      decoding constraints: walks over legal completions, grammars, tagged text
- ``match``             plays and replays one game between agents in seats
- ``arena``             ``Arena``: runs episodes and makes training batches of them
- ``model_call``        one model call of an arena: its running episode, limits, validation
- ``episodes/``         protocols of play between roles, which may nest
- ``environments/``     what a league plays by name: registered arenas, and games
- ``judges``            base of environments in which a judge compares two sides
- ``exploitability``    what best responses win from a policy in small games
- ``questions``, ``datasets``  parts of single environments
- ``rubrics``           scoring of episodes
- ``stores``            artifacts, the subjects of episodes
- ``clients/``          clients that complete conversations
- ``observer``          events of an arena while it plays, and their log
- ``training_records``  training records and trajectories of episodes
- ``records``           records and transcripts of episodes

Terms: an *environment* is what ``environments.make_environment`` returns (those of TextArena are games of
``games.textarena``); a *record* is the stored play of a match; a *context* (``EpisodeContext``) is an episode's
position in the tree of episodes, a *state* a position in a constraint's walk or in a game; a *step* of an ``Arena``
plays a batch, the ``Step`` of an episode is one model call; *pieces* are the indivisible texts of a ``TextFormat``.

To add a game: one module under ``games/`` with its config struct, its ``Game`` and ``@register("name")``; the
contract tests find it. ``docs/extending.md`` shows every kind of plugin.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arena.api import *


def __getattr__(name: str) -> Any:
    """The public interface, on first use: every worker imports this package, and none needs all of it."""
    if not name.startswith("_") and hasattr(api := importlib.import_module("arena.api"), name):
        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
