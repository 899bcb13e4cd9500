"""The core types on one page, all of them importable from here.

Configuration:

- ``LeagueConfig``  everything that is configured, decoded from one TOML file
- ``Plugin``        a plugin by name, with its own settings table
- ``AgentConfig``   an agent that the league starts with: a bot, the base model, or a remote model

History (``schemas.events`` has all 39 events):

- ``Event``              base of all events: an immutable fact with a deterministic ``key``
- ``LeagueOpened``       the first event: the whole configuration
- ``AgentRegistered``    a bot, the base model or a remote model entered the league
- ``CheckpointAdded``    a version of a policy joined the league as an immutable opponent
- ``OpponentsSampled``   the opponents drawn for a match, and what is needed to recompute the draw
- ``MatchFinished``      the result of a match: one ``SeatResult`` per seat
- ``MatchFailed``        a match that could not be played to its end, with the reason
- ``MatchVoided``        a result taken back; the match itself stays in the history
- ``RatingUpdated``      ratings before and after a match, under one rating system
- ``GradientStepTaken``  one step of the trainer: what it trained on, what it dropped, its metrics
- ``PolicyPublished``    a new version of a policy, which rollout workers serve from then on

Matchmaking:

- ``Standings``   read-only table at one sequence of the history: what samplers decide from
- ``Agent``       one entrant of the league: kind, rating, games, adapter
- ``LivePolicy``  a policy at its newest version
- ``WinLoss``     wins, draws and losses of a policy against one agent
- ``PlayMatch``   a job on the work queue: a match between named agents

Training:

- ``Trajectory``      what one trainable seat did in one finished match: what the trainer learns from
- ``ModelCall``       one model call of it: token ids, choices, log-probabilities, allowed tokens
- ``RoleSegment``     the part of a trajectory that one role played in one episode
- ``TrainingBatch``   the model calls of a batch of episodes, with their credit
- ``CreditAssigner``  protocol: turns the rewards of episodes into advantages
- ``Credit``          its result: an advantage per step, and the state to remember

Episodes:

- ``EpisodeRequest``  an episode to run
- ``Role``            a trainable entity of an episode: one way of the model to behave
- ``Message``         one part of a conversation
- ``Step``            one model call of an episode, in text
- ``Rollout``         the record of one episode: its steps, rewards and metrics
- ``GenerateResult``  an episode's rollout with those of the episodes that it started
- ``EpisodeState``    the mutable state of an episode while it runs
- ``Artifact``        what an episode is about: a topic, a problem, a document

Errors (``schemas.errors`` draws the whole tree):

- ``LeagueError``   base of all errors
- ``ConfigError``   a configuration key or value is invalid
- ``GameError``     a game was asked for something that its rules do not allow
- ``EpisodeError``  an episode cannot come to a result
- ``ModelError``    a model or adapter that cannot be used
- ``LogError``      the event log failed
"""

from schemas.batches import Credit as Credit
from schemas.batches import CreditAssigner as CreditAssigner
from schemas.batches import TrainingBatch as TrainingBatch
from schemas.config import AgentConfig as AgentConfig
from schemas.config import LeagueConfig as LeagueConfig
from schemas.config import Plugin as Plugin
from schemas.episodes import Artifact as Artifact
from schemas.episodes import EpisodeRequest as EpisodeRequest
from schemas.episodes import EpisodeState as EpisodeState
from schemas.episodes import GenerateResult as GenerateResult
from schemas.episodes import Message as Message
from schemas.episodes import Role as Role
from schemas.episodes import Rollout as Rollout
from schemas.episodes import Step as Step
from schemas.errors import ConfigError as ConfigError
from schemas.errors import EpisodeError as EpisodeError
from schemas.errors import GameError as GameError
from schemas.errors import LeagueError as LeagueError
from schemas.errors import LogError as LogError
from schemas.errors import ModelError as ModelError
from schemas.events import AgentRegistered as AgentRegistered
from schemas.events import CheckpointAdded as CheckpointAdded
from schemas.events import Event as Event
from schemas.events import GradientStepTaken as GradientStepTaken
from schemas.events import LeagueOpened as LeagueOpened
from schemas.events import MatchFailed as MatchFailed
from schemas.events import MatchFinished as MatchFinished
from schemas.events import MatchVoided as MatchVoided
from schemas.events import OpponentsSampled as OpponentsSampled
from schemas.events import PolicyPublished as PolicyPublished
from schemas.events import RatingUpdated as RatingUpdated
from schemas.events import SeatResult as SeatResult
from schemas.jobs import PlayMatch as PlayMatch
from schemas.standings import Agent as Agent
from schemas.standings import LivePolicy as LivePolicy
from schemas.standings import Standings as Standings
from schemas.standings import WinLoss as WinLoss
from schemas.trajectories import ModelCall as ModelCall
from schemas.trajectories import RoleSegment as RoleSegment
from schemas.trajectories import Trajectory as Trajectory
