"""The HTTP server of an inference process: any backend, for the league's workers and for OpenAI's clients.

- ``app``                 the application: routes, bounds, address; ``/health``, ``/stats``, ``/metrics``
- ``admission``           admission control: loading, draining, bounds
- ``served_models``       models by name, adapters by digest
- ``generate_route``      ``POST /generate`` along excerpts of constraints; ``/adapters/version``, loading and unloading
- ``openai_routes``       ``/v1/completions`` and ``/v1/chat/completions``
- ``opponent_pool``       ``/v1/league/…``: sessions against opponents of the league, their results, external agents
- ``openai_types``        requests and errors in OpenAI's form
- ``output_constraints``  JSON schemas, expressions, choices, lists of tokens, stop strings
"""

from inference.server.app import InferenceServer
from inference.server.served_models import ServedModels

__all__ = ["InferenceServer", "ServedModels"]
