"""Players in the seats of matches and episodes: policies, remote agents, people.

- ``policy``          the league's own models in a seat of a game, and as client of an episode
- ``search``          a policy that compares sampled actions by rollouts
- ``prompt_builder``  prompts by a league's configuration, its game and its model; replies without constraint
- ``reply_formats``   constrained replies and how they are parsed
- ``word_replies``    prompts in plain language, and the replies that the game lists
- ``remote/``         agents behind a server with OpenAI's chat interface
- ``human``           people in a seat
"""
