"""Tables and views of a projection.

``VERSION`` goes up whenever anything here or in ``load`` changes; files of another version are rebuilt. Times are
UTC. Sequences say where in the history a row comes from. No table has a primary key: keys are kept by what ``load``
inserts, since DuckDB's indexes would make bulk loading several times slower.
"""

VERSION = 1

TABLES = {
    "position": "schema_version INTEGER, sequence BIGINT, time TIMESTAMP",
    "events": "sequence BIGINT, time TIMESTAMP, type VARCHAR, subject VARCHAR, producer VARCHAR, payload JSON",
    "agents": """
        agent VARCHAR, kind VARCHAR, baseline BOOLEAN, start_rating DOUBLE,
        policy VARCHAR, version BIGINT, parent VARCHAR, adapter VARCHAR, join_reason VARCHAR,
        joined_sequence BIGINT, joined_time TIMESTAMP,
        retired_sequence BIGINT, retired_reason VARCHAR, promoted_sequence BIGINT,
        reason VARCHAR GENERATED ALWAYS AS (CASE WHEN promoted_sequence IS NULL THEN join_reason ELSE 'elite' END),
        active BOOLEAN GENERATED ALWAYS AS (
            retired_sequence IS NULL OR coalesce(promoted_sequence, 0) > retired_sequence)
    """,
    "matches": """
        match_id VARCHAR, sequence BIGINT, time TIMESTAMP, game VARCHAR, purpose VARCHAR, worker VARCHAR, seed BIGINT,
        winner BIGINT, winner_agent VARCHAR, reason VARCHAR, length BIGINT, seconds DOUBLE, tokens BIGINT,
        record VARCHAR, experience VARCHAR, evaluation_id VARCHAR
    """,
    "match_failures": """
        match_id VARCHAR, sequence BIGINT, time TIMESTAMP, purpose VARCHAR, worker VARCHAR, error VARCHAR,
        evaluation_id VARCHAR
    """,
    "match_seats": """
        match_id VARCHAR, sequence BIGINT, seat BIGINT, role VARCHAR, agent VARCHAR, score DOUBLE, rank BIGINT,
        trainable BOOLEAN, metrics MAP(VARCHAR, DOUBLE)
    """,
    "ratings": """
        sequence BIGINT, time TIMESTAMP, match_id VARCHAR, match_sequence BIGINT, game VARCHAR, system VARCHAR,
        agent VARCHAR, before DOUBLE, after DOUBLE
    """,
    "policies": """
        policy VARCHAR, version BIGINT, adapter VARCHAR, parent VARCHAR, sequence BIGINT, time TIMESTAMP
    """,
    "gradient_steps": """
        policy VARCHAR, step BIGINT, sequence BIGINT, time TIMESTAMP, batch VARCHAR, matches VARCHAR[],
        experience_from BIGINT, experience_to BIGINT, accepted BIGINT, stale BIGINT, refused BIGINT, state VARCHAR,
        skipped BOOLEAN, metrics MAP(VARCHAR, DOUBLE)
    """,
    "opponents_sampled": """
        match_id VARCHAR, sequence BIGINT, time TIMESTAMP, worker VARCHAR, hero VARCHAR, hero_seat BIGINT,
        sampler VARCHAR, sampler_digest VARCHAR, standings_sequence BIGINT, draw BIGINT, seat BIGINT, agent VARCHAR,
        bucket VARCHAR
    """,
    "evaluations": """
        evaluation_id VARCHAR, agent VARCHAR, suite VARCHAR, opponents VARCHAR[], matches BIGINT,
        requested_sequence BIGINT, requested_time TIMESTAMP, finished_sequence BIGINT, finished_time TIMESTAMP,
        games BIGINT, failed BIGINT, wins BIGINT, mean_score DOUBLE, mean_rank DOUBLE
    """,
    "workers": """
        worker VARCHAR, incarnation VARCHAR, role VARCHAR, host VARCHAR, pid BIGINT, version VARCHAR,
        joined_sequence BIGINT, joined_time TIMESTAMP, left_sequence BIGINT, left_time TIMESTAMP, left_reason VARCHAR
    """,
}

VIEWS = {
    "checkpoints": """
        SELECT agent, policy, version, parent, adapter, reason, active, joined_sequence, joined_time,
               promoted_sequence, retired_sequence
        FROM agents WHERE kind = 'checkpoint'
    """,
    "configuration": """
        SELECT sequence, payload->'$.config' AS config FROM events
        WHERE type IN ('LeagueOpened', 'LeagueConfigured') ORDER BY sequence DESC LIMIT 1
    """,
    # Current ratings of the configured game under the configured system. Versions that are no agents are in it too.
    "current_ratings": r"""
        SELECT agent, arg_max(after, ratings.sequence) AS rating, count(*) AS rated_games,
               nullif(regexp_extract(agent, '^(.+)@(0|[1-9][0-9]{0,17})$', 1), '') AS policy,
               try_cast(regexp_extract(agent, '^(.+)@(0|[1-9][0-9]{0,17})$', 2) AS BIGINT) AS version
        FROM ratings JOIN configuration
          ON game = config->>'$.game.name' AND system = config->>'$.ratings.system.name'
        GROUP BY agent
    """,
    # An agent that was never rated stands where the state's fold puts it: at its start, at the nearest lower rated
    # version of its policy, or at the base agent.
    "leaderboard": """
        WITH base AS (
            SELECT coalesce(r.rating, a.start_rating) AS rating
            FROM agents a LEFT JOIN current_ratings r USING (agent)
            WHERE a.kind = 'base' ORDER BY a.joined_sequence LIMIT 1
        ), inherited AS (
            SELECT a.agent, arg_max(r.rating, r.version) AS rating
            FROM agents a JOIN current_ratings r ON a.policy = r.policy AND r.version < a.version GROUP BY a.agent
        ), played AS (
            SELECT s.agent, count(DISTINCT CASE WHEN s.seat = m.winner THEN m.match_id END) AS wins,
                   avg(s.rank) AS mean_rank
            FROM match_seats s JOIN matches m USING (match_id)
            WHERE m.match_id IN (SELECT match_id FROM ratings) GROUP BY s.agent
        ), rated AS (
            SELECT a.agent, a.kind, a.active, a.reason, a.joined_sequence,
                   coalesce(r.rating, a.start_rating, i.rating, (SELECT rating FROM base), 1000.0) AS rating,
                   coalesce(r.rated_games, 0) AS rated_games,
                   coalesce(p.wins, 0) AS wins, p.mean_rank
            FROM agents a LEFT JOIN current_ratings r USING (agent) LEFT JOIN inherited i USING (agent)
                 LEFT JOIN played p USING (agent)
        )
        SELECT row_number() OVER (ORDER BY rating DESC, agent) AS rank, agent, kind, rating, rated_games, wins,
               mean_rank, active, reason
        FROM rated ORDER BY rank
    """,
}


def create_statements() -> list[str]:
    """SQL that creates every table and view, empty."""
    return [f"CREATE TABLE {name} ({columns})" for name, columns in TABLES.items()] + [
        f"CREATE VIEW {name} AS {query}" for name, query in VIEWS.items()
    ]
