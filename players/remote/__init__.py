"""Models behind a server with OpenAI's chat interface.

- ``remote_player``  remote agents in the seats of games and the roles of episodes
- ``model``          requests to one remote agent, with retries and a budget, and their cost
- ``http_client``    the HTTP client for servers outside the league
- ``openai_client``  an ``InferenceClient`` without a league
"""
