-- The tables, macros and views of a projection, in the order in which they are made.
--
-- The schema `main` is for queries. `kept` holds the bookkeeping and the rows of the tables that grow with every match.

CREATE SCHEMA kept;

-- Bookkeeping.
CREATE TABLE kept.position (schema_version INTEGER, sequence BIGINT, time TIMESTAMP);
CREATE TABLE kept.attached (first BIGINT, last BIGINT, part VARCHAR, path VARCHAR, size BIGINT);
CREATE TABLE kept.dedup (index BLOB);
CREATE TABLE kept.decision_files (kind VARCHAR, artifact VARCHAR, path VARCHAR, size BIGINT);

-- The columns of decision segments. No row is loaded: views read the segments' files.
CREATE TABLE kept.decisions (
    match_id VARCHAR, purpose VARCHAR, time TIMESTAMP, worker VARCHAR, seat BIGINT, agent VARCHAR, policy VARCHAR,
    call BIGINT, version BIGINT, clock BIGINT, prompt VARCHAR, thoughts VARCHAR, reply VARCHAR, second_reply VARCHAR,
    move VARCHAR, fault VARCHAR, legal_moves VARCHAR[], logprob DOUBLE, choices BIGINT, temperature DOUBLE,
    opponents VARCHAR[], ratings DOUBLE[], score DOUBLE, rank BIGINT
);

CREATE TABLE kept.credit (
    match_id VARCHAR, seat BIGINT, call BIGINT, policy VARCHAR, step BIGINT, outcome VARCHAR, reward DOUBLE,
    advantage DOUBLE
);

-- `payload` is the event as it was written, JSON text (the type JSON would be parsed again with every batch); what is
-- no JSON is a JSON string there, and as it was in `raw`.
CREATE TABLE kept.events (
    sequence BIGINT, time_ns BIGINT, type VARCHAR, subject VARCHAR, producer VARCHAR, schema BIGINT,
    payload VARCHAR USING COMPRESSION zstd, raw BLOB
);

-- Tables whose rows the dedup index decides about, most with rows for every match; a segment holds each as a file.
CREATE TABLE kept.matches (
    match_id VARCHAR, sequence BIGINT, time TIMESTAMP, game VARCHAR, purpose VARCHAR, worker VARCHAR, seed BIGINT,
    winner BIGINT, winner_agent VARCHAR, reason VARCHAR, length BIGINT, seconds DOUBLE, tokens BIGINT,
    record VARCHAR, experience VARCHAR, evaluation_id VARCHAR, environment VARCHAR, rules BIGINT
);

CREATE TABLE kept.match_failures (
    match_id VARCHAR, sequence BIGINT, time TIMESTAMP, purpose VARCHAR, worker VARCHAR, error VARCHAR,
    evaluation_id VARCHAR
);

CREATE TABLE kept.match_seats (
    match_id VARCHAR, sequence BIGINT, seat BIGINT, role VARCHAR, agent VARCHAR, score DOUBLE, rank BIGINT,
    trainable BOOLEAN, metrics MAP(VARCHAR, DOUBLE), team VARCHAR, side BIGINT, won BOOLEAN
);

CREATE TABLE kept.ratings (
    sequence BIGINT, time TIMESTAMP, match_id VARCHAR, match_sequence BIGINT, game VARCHAR, system VARCHAR,
    agent VARCHAR, before DOUBLE, after DOUBLE, rest DOUBLE[]
);

CREATE TABLE kept.opponents_sampled (
    match_id VARCHAR, sequence BIGINT, time TIMESTAMP, worker VARCHAR, hero VARCHAR, hero_seat BIGINT,
    sampler VARCHAR, sampler_digest VARCHAR, standings_sequence BIGINT, draw BIGINT, seat BIGINT, agent VARCHAR,
    bucket VARCHAR
);

CREATE TABLE kept.corrections (
    sequence BIGINT, time TIMESTAMP, game VARCHAR, system VARCHAR, through BIGINT, waited VARCHAR[],
    ratings STRUCT(agent VARCHAR, rating DOUBLE, games BIGINT, rest DOUBLE[])[]
);

CREATE TABLE kept.unreadable (sequence BIGINT, type VARCHAR);

-- Small tables: rows are inserted and updated in place.

CREATE TABLE agents (
    agent VARCHAR, kind VARCHAR, baseline BOOLEAN, start_rating DOUBLE,
    policy VARCHAR, version BIGINT, parent VARCHAR, adapter VARCHAR, join_reason VARCHAR,
    joined_sequence BIGINT, joined_time TIMESTAMP,
    retired_sequence BIGINT, retired_reason VARCHAR, promoted_sequence BIGINT, active BOOLEAN,
    reason VARCHAR GENERATED ALWAYS AS (CASE WHEN promoted_sequence IS NULL THEN join_reason ELSE 'elite' END)
);
COMMENT ON TABLE agents IS 'entrants, one row each; `active` and `reason` as they are now';

CREATE TABLE activations (
    agent VARCHAR, sequence BIGINT, time TIMESTAMP, active BOOLEAN, change VARCHAR, reason VARCHAR, after BIGINT
);
COMMENT ON TABLE activations IS 'when agents began and ceased to be drawn as opponents: promoted, retired, activated again';

CREATE TABLE configurations (
    sequence BIGINT, time TIMESTAMP, game VARCHAR, system VARCHAR, systems VARCHAR[], purposes VARCHAR[],
    config JSON
);
COMMENT ON TABLE configurations IS 'every configuration, and the game, rating systems and purposes that count; row 0: before any';

CREATE TABLE decision_segments (
    kind VARCHAR, artifact VARCHAR, worker VARCHAR, rows BIGINT, bytes BIGINT, sequence BIGINT, time TIMESTAMP,
    dropped_sequence BIGINT
);
COMMENT ON TABLE decision_segments IS 'the files that `decisions` reads; `dropped_sequence`: when the limits of history.decisions dropped it';

CREATE TABLE evaluations (
    evaluation_id VARCHAR, agent VARCHAR, suite VARCHAR, opponents VARCHAR[], matches BIGINT,
    requested_sequence BIGINT, requested_time TIMESTAMP, finished_sequence BIGINT, finished_time TIMESTAMP,
    games BIGINT, failed BIGINT, wins BIGINT, mean_score DOUBLE, mean_rank DOUBLE, decided VARCHAR
);
COMMENT ON TABLE evaluations IS 'requested measurements and their results';

CREATE TABLE gradient_steps (
    policy VARCHAR, step BIGINT, sequence BIGINT, time TIMESTAMP, batch VARCHAR, matches VARCHAR[],
    experience_from BIGINT, experience_to BIGINT, accepted BIGINT, stale BIGINT, refused BIGINT, voided BIGINT,
    state VARCHAR, skipped BOOLEAN, metrics MAP(VARCHAR, DOUBLE), filtered BIGINT, floor BIGINT, trained BIGINT[][],
    dropped STRUCT(reason VARCHAR, sequences BIGINT[][], matches VARCHAR[])[],
    parts STRUCT("sequence" BIGINT, match_id VARCHAR, steps BIGINT[][], "left" BIGINT)[]
);
COMMENT ON TABLE gradient_steps IS 'what every step used (`matches`), dropped and measured (`metrics`)';

CREATE TABLE policies (
    policy VARCHAR, version BIGINT, adapter VARCHAR, parent VARCHAR, sequence BIGINT, time TIMESTAMP
);
COMMENT ON TABLE policies IS 'every published version of a policy';

CREATE TABLE promotions (
    evaluation_id VARCHAR, candidate VARCHAR, incumbent VARCHAR, verdict VARCHAR, sequence BIGINT, time TIMESTAMP,
    pairs BIGINT, score DOUBLE, llr DOUBLE, lower DOUBLE, upper DOUBLE, elo0 DOUBLE, elo1 DOUBLE,
    scores DOUBLE[], matches VARCHAR[][]
);
COMMENT ON TABLE promotions IS 'verdicts of sequential tests, to promote or to keep; `matches`: the ids of every pair''s matches';

CREATE TABLE remote_requests (
    agent VARCHAR, match_id VARCHAR, sequence BIGINT, time TIMESTAMP, worker VARCHAR, since BIGINT, number BIGINT,
    requests BIGINT, prompt_tokens BIGINT, completion_tokens BIGINT, tokens BIGINT, uncounted BIGINT, cost DOUBLE
);
COMMENT ON TABLE remote_requests IS 'what remote agents were asked in matches, failed ones too, and what that cost';

CREATE TABLE artifacts (
    store VARCHAR, artifact VARCHAR, data JSON, weight DOUBLE, match_id VARCHAR, number BIGINT, sequence BIGINT,
    time TIMESTAMP, worker VARCHAR
);
COMMENT ON TABLE artifacts IS 'what matches added to the arena''s stores; the newest row of an id holds; not their initial content';

CREATE TABLE sessions (
    match_id VARCHAR, session VARCHAR, sequence BIGINT, time TIMESTAMP, worker VARCHAR, model VARCHAR, agent VARCHAR,
    seat BIGINT, opponent VARCHAR, game VARCHAR, probabilities MAP(VARCHAR, DOUBLE), expires TIMESTAMP
);
COMMENT ON TABLE sessions IS 'matches of external agents against opponents of the pool, with the distribution drawn from; results: `matches`';

CREATE TABLE resets (
    policy VARCHAR, version BIGINT, sequence BIGINT, time TIMESTAMP, reason VARCHAR, operator VARCHAR, settings JSON,
    parents STRUCT(agent VARCHAR, adapter VARCHAR)[], seed BIGINT, adapter VARCHAR
);
COMMENT ON TABLE resets IS 'where a policy began anew: from the untrained adapter, or an operator''s offspring of `parents`';

CREATE TABLE voids (match_id VARCHAR, sequence BIGINT, time TIMESTAMP, match_sequence BIGINT, reason VARCHAR);
COMMENT ON TABLE voids IS 'results that were taken back';

CREATE TABLE workers (
    worker VARCHAR, incarnation VARCHAR, role VARCHAR, host VARCHAR, pid BIGINT, version VARCHAR,
    joined_sequence BIGINT, joined_time TIMESTAMP, left_sequence BIGINT, left_time TIMESTAMP, left_reason VARCHAR
);
COMMENT ON TABLE workers IS 'worker processes, one row per start';

CREATE TABLE archives (
    sequence BIGINT, time TIMESTAMP, first BIGINT, last BIGINT, manifest VARCHAR, bytes BIGINT
);
COMMENT ON TABLE archives IS 'ranges of the history that lie in the blob store too, with the digest of the manifest that seals them';

CREATE TABLE snapshots (
    sequence BIGINT, time TIMESTAMP, through BIGINT, artifact VARCHAR, state VARCHAR, version BIGINT
);
COMMENT ON TABLE snapshots IS 'saved folds that new workers begin with';

CREATE TABLE pauses (policy VARCHAR, sequence BIGINT, time TIMESTAMP, paused BOOLEAN, reason VARCHAR, after BIGINT);
COMMENT ON TABLE pauses IS 'when a policy, or under the empty name the league, was told to pause (`paused`) or to go on';

CREATE TABLE branches (sequence BIGINT, time TIMESTAMP, origin VARCHAR, through BIGINT, digest VARCHAR);
COMMENT ON TABLE branches IS 'where the history was copied from another run, if it was';

CREATE TABLE imports (
    sequence BIGINT, time TIMESTAMP, source VARCHAR, digest VARCHAR, agents BIGINT, matches BIGINT, metadata JSON
);
COMMENT ON TABLE imports IS 'registries of other programs that were recorded as events';

CREATE TABLE result_imports (
    sequence BIGINT, time TIMESTAMP, origin VARCHAR, format VARCHAR, source VARCHAR, digest VARCHAR, matches BIGINT,
    agents MAP(VARCHAR, VARCHAR)
);
COMMENT ON TABLE result_imports IS 'files with results of other systems; their rows in `matches` have the purpose external and the origin as worker';

-- A macro's parameter is put in as it stands, so it can be a subquery too: FROM leaderboard_at(sequence_at('…')).

CREATE MACRO sequence_at(moment) AS
    (SELECT coalesce(max(sequence), 0) FROM kept.all_events
     WHERE time_ns <= epoch_us(moment::TIMESTAMP) * 1000 + 999);

-- By default the official system and the configured game of that time. A correction replaces all ratings of its game
-- and system; what came after it is counted on top.
CREATE MACRO ratings_at(upto, under := NULL, playing := NULL) AS TABLE
    WITH conf AS (
        SELECT coalesce(playing, game) AS game, coalesce(under, system) AS system
        FROM configurations WHERE sequence <= upto ORDER BY sequence DESC LIMIT 1
    ), correction AS (
        SELECT c.sequence, c.ratings FROM kept.all_corrections c JOIN conf USING (game, system)
        WHERE c.sequence <= upto ORDER BY c.sequence DESC LIMIT 1
    ), corrected AS (
        SELECT r.agent, r.rating, r.games, r.rest FROM (SELECT unnest(ratings) AS r FROM correction)
    ), updated AS (
        SELECT agent, arg_max(after, sequence) AS rating, arg_max(rest, sequence) AS rest, count(*) AS games
        FROM kept.all_ratings JOIN conf USING (game, system)
        WHERE sequence <= upto AND sequence > coalesce((SELECT sequence FROM correction), 0) GROUP BY agent
    )
    SELECT agent, coalesce(u.rating, c.rating) AS rating, coalesce(u.rest, c.rest)[1] AS deviation,
           coalesce(u.rest, c.rest) AS rest, coalesce(u.games, 0) + coalesce(c.games, 0) AS rated_games,
           nullif(regexp_extract(agent, '^(.+)@(0|[1-9][0-9]{0,17})$', 1), '') AS policy,
           try_cast(regexp_extract(agent, '^(.+)@(0|[1-9][0-9]{0,17})$', 2) AS BIGINT) AS version
    FROM updated u FULL JOIN corrected c USING (agent);

-- Matches that waited for a correction are in its ratings and have no update.
CREATE MACRO rated_matches_at(upto, under := NULL, playing := NULL) AS TABLE
    WITH conf AS (
        SELECT coalesce(playing, game) AS game, coalesce(under, system) AS system
        FROM configurations WHERE sequence <= upto ORDER BY sequence DESC LIMIT 1
    ), rated AS (
        SELECT match_id FROM kept.all_ratings JOIN conf USING (game, system) WHERE sequence <= upto
        UNION ALL
        SELECT unnest(waited) FROM kept.all_corrections JOIN conf USING (game, system) WHERE sequence <= upto
    )
    SELECT m.match_id, m.sequence FROM kept.all_matches m SEMI JOIN conf USING (game)
    WHERE m.sequence <= upto AND m.match_id IN (FROM rated)
      AND m.match_id NOT IN (SELECT match_id FROM voids WHERE sequence <= upto);

-- A game is an environment too. Weights give each game the same number of comparisons, one per side of a match.
CREATE MACRO rated_games_at(upto, under := NULL) AS TABLE
    WITH conf AS (
        SELECT coalesce(under, system) AS system FROM configurations WHERE sequence <= upto
        ORDER BY sequence DESC LIMIT 1
    ), rated AS (
        SELECT match_id FROM kept.all_ratings JOIN conf USING (system) WHERE sequence <= upto
        UNION ALL
        SELECT unnest(waited) FROM kept.all_corrections JOIN conf USING (system) WHERE sequence <= upto
    ), sides AS (
        SELECT match_id, m.sequence, game, environment, count(DISTINCT side) AS sides
        FROM kept.all_matches m JOIN kept.all_match_seats s USING (match_id)
        WHERE m.sequence <= upto AND m.match_id IN (FROM rated)
              AND m.match_id NOT IN (SELECT match_id FROM voids WHERE sequence <= upto)
        GROUP BY ALL
    ), games AS (
        SELECT game, environment, sum(sides) AS sides FROM sides GROUP BY ALL
    )
    SELECT s.match_id, s.sequence, s.game, s.environment,
           (SELECT sum(sides) / count(*) FROM games) / g.sides AS weight
    FROM sides s JOIN games g USING (game, environment) ORDER BY s.sequence;

CREATE MACRO entrants_at(upto) AS TABLE
    WITH changed AS (
        SELECT agent, arg_max(active, sequence) AS active, min(sequence) FILTER (change = 'promoted') AS promoted
        FROM activations WHERE sequence <= upto GROUP BY agent
    )
    SELECT a.agent, kind, policy, version, joined_sequence, coalesce(c.active, kind <> 'external') AS active,
           CASE WHEN c.promoted IS NULL THEN join_reason ELSE 'elite' END AS reason
    FROM agents a LEFT JOIN changed c USING (agent) WHERE joined_sequence <= upto ORDER BY joined_sequence;

-- The newest rated version of a policy, where it is no agent: evaluated, and not admitted, or not yet.
CREATE MACRO unadmitted_versions_at(upto, playing := NULL) AS TABLE
    WITH newest AS (
        SELECT agent, policy, version FROM ratings_at(upto, playing := playing) WHERE policy IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY policy ORDER BY version DESC) = 1
    )
    SELECT agent, 'version' AS kind, policy, version, false AS active, 'newest' AS reason
    FROM newest WHERE agent NOT IN (SELECT agent FROM agents WHERE joined_sequence <= upto) ORDER BY agent;

-- An agent that was never rated stands where the state's fold puts it: at its start, at the nearest lower rated version
-- of its policy since the last reset, or at the base agent. Its deviation is the rating system's to say: empty here.
CREATE MACRO leaderboard_at(upto, under := NULL, playing := NULL) AS TABLE
    WITH rated AS MATERIALIZED (FROM ratings_at(upto, under := under, playing := playing)), entrants AS (
        SELECT e.*, a.start_rating FROM entrants_at(upto) e JOIN agents a USING (agent)
        UNION ALL BY NAME FROM unadmitted_versions_at(upto, playing := playing)
    ), base AS (
        SELECT coalesce(r.rating, a.start_rating) AS rating
        FROM entrants a LEFT JOIN rated r USING (agent) WHERE a.kind = 'base' ORDER BY a.joined_sequence LIMIT 1
    ), inherited AS (
        SELECT a.agent, arg_max(r.rating, r.version) AS rating
        FROM entrants a JOIN rated r ON a.policy = r.policy AND r.version < a.version
        WHERE NOT EXISTS (FROM resets z WHERE z.policy = a.policy AND z.sequence <= upto
                          AND r.version <= z.version AND z.version < a.version)
        GROUP BY a.agent
    ), played AS (
        SELECT s.agent, count(DISTINCT m.sequence) FILTER (s.won) AS wins,
               avg(s.rank) AS mean_rank
        FROM kept.all_match_seats s
             JOIN rated_matches_at(upto, under := under, playing := playing) m USING (sequence) GROUP BY s.agent
    ), placed AS (
        SELECT a.*, coalesce(r.rating, a.start_rating, i.rating, (SELECT rating FROM base), 1000.0) AS rating,
               r.deviation, coalesce(r.rated_games, 0) AS rated_games, coalesce(p.wins, 0) AS wins, p.mean_rank
        FROM entrants a LEFT JOIN rated r USING (agent) LEFT JOIN inherited i USING (agent)
             LEFT JOIN played p USING (agent)
    )
    SELECT row_number() OVER (ORDER BY rating DESC, agent) AS rank, agent, kind, rating, deviation, rated_games,
           wins, mean_rank, active, reason
    FROM placed ORDER BY rank;

CREATE VIEW events AS
    SELECT sequence, make_timestamp(time_ns // 1000) AS time, type, subject, producer, payload FROM kept.all_events;
COMMENT ON VIEW events IS 'every event: `payload` is its JSON, so `payload->>''$.field''` reads any field';

CREATE VIEW matches AS
    SELECT m.*, v.sequence AS voided_sequence, v.reason AS void_reason
    FROM kept.all_matches m LEFT JOIN voids v USING (match_id);
COMMENT ON VIEW matches IS 'one row per match; `voided_sequence` says that its result was taken back, and counts nowhere';

CREATE VIEW match_seats AS
    SELECT *, try_cast(metrics['reply_count'] AS BIGINT) AS replies,
           try_cast(metrics['reply_truncated'] AS BIGINT) AS truncated,
           try_cast(metrics['reply_empty'] AS BIGINT) AS empty,
           try_cast(metrics['reply_unparsable'] AS BIGINT) AS unparsable,
           try_cast(metrics['reply_illegal'] AS BIGINT) AS illegal
    FROM kept.all_match_seats;
COMMENT ON VIEW match_seats IS 'one row per seat of every match: the `role` that it played, its `team`, its `side` (the first seat of its team, or itself), whether that `won` (was strictly first); replies of a model, and those of them without a legal move, by their fault';

CREATE VIEW match_failures AS
    FROM kept.all_match_failures;
COMMENT ON VIEW match_failures IS 'matches that could not be played to their end';

CREATE VIEW ratings AS
    SELECT * EXCLUDE rest, rest[1] AS deviation, rest FROM kept.all_ratings;
COMMENT ON VIEW ratings IS 'one row per agent, rated match and rating system; `deviation` and `rest` are of after the match';

CREATE VIEW opponents_sampled AS
    FROM kept.all_opponents_sampled;
COMMENT ON VIEW opponents_sampled IS 'one row per opponent drawn for a training match or a session';

-- Rows of the worker whose result of the match was recorded, and of a repeated gradient step one.
CREATE VIEW decisions AS
    WITH credited AS (
        SELECT match_id, seat, call, max(step) AS step, arg_max(outcome, step) AS outcome,
               arg_max(reward, step) AS reward, arg_max(advantage, step) AS advantage
        FROM kept.all_credit WHERE call >= 0 GROUP BY match_id, seat, call
    ), whole AS (
        SELECT match_id, seat, max(step) AS step, arg_max(outcome, step) AS outcome
        FROM kept.all_credit WHERE call < 0 GROUP BY match_id, seat
    )
    SELECT d.match_id, m.sequence, d.purpose, d.time, m.environment, d.worker, d.seat, d.agent, d.policy, d.version,
           d.call, d.clock, d.prompt, d.thoughts, d.reply, d.second_reply, d.move, d.fault, d.legal_moves, d.logprob,
           d.choices, d.temperature, d.opponents, d.ratings, d.score, d.rank,
           coalesce(c.step, w.step) AS step, coalesce(c.outcome, w.outcome) AS outcome, c.reward, c.advantage
    FROM kept.all_decisions d
         JOIN kept.all_matches m ON m.match_id = d.match_id AND m.worker = d.worker
         LEFT JOIN credited c ON c.match_id = d.match_id AND c.seat = d.seat AND c.call = d.call
         LEFT JOIN whole w ON w.match_id = d.match_id AND w.seat = d.seat;
COMMENT ON VIEW decisions IS 'one row per decision of a model of the league: prompt, reply, move, and the credit it was trained with';
COMMENT ON COLUMN decisions.match_id IS 'the match';
COMMENT ON COLUMN decisions.sequence IS 'event of the match''s result';
COMMENT ON COLUMN decisions.purpose IS 'training (the trained seat only), evaluation, benchmark or exhibition';
COMMENT ON COLUMN decisions.time IS 'when the match ended, UTC';
COMMENT ON COLUMN decisions.environment IS 'environment of a game that has several';
COMMENT ON COLUMN decisions.worker IS 'worker that played the match';
COMMENT ON COLUMN decisions.seat IS 'seat of the match, from 0';
COMMENT ON COLUMN decisions.agent IS 'agent in the seat';
COMMENT ON COLUMN decisions.policy IS 'policy of the agent; empty for the base model';
COMMENT ON COLUMN decisions.version IS 'version of the policy that sampled the reply';
COMMENT ON COLUMN decisions.call IS 'number of the decision in the match and seat, from 0';
COMMENT ON COLUMN decisions.clock IS 'the game''s clock at the decision: turns, or the year in Diplomacy';
COMMENT ON COLUMN decisions.prompt IS 'the tokens of the prompt as text, marks included';
COMMENT ON COLUMN decisions.thoughts IS 'text of the reply before its end-of-thought mark';
COMMENT ON COLUMN decisions.reply IS 'the sampled reply, without thoughts and end tokens';
COMMENT ON COLUMN decisions.second_reply IS 'the reply to a second question (prompts.second_question), which is not trained on';
COMMENT ON COLUMN decisions.move IS 'the move that was played; NULL in episodes, whose replies are not parsed as moves';
COMMENT ON COLUMN decisions.fault IS 'why a free reply held no legal move (truncated, empty, unparsable, illegal), or whether a reply in an environment was truncated or empty; otherwise blank';
COMMENT ON COLUMN decisions.legal_moves IS 'all legal moves; NULL if the game does not list them, or has more than 60';
COMMENT ON COLUMN decisions.logprob IS 'log-probability of the reply in nats: the sum over its choices';
COMMENT ON COLUMN decisions.choices IS 'tokens of the reply that were sampled rather than forced';
COMMENT ON COLUMN decisions.temperature IS 'sampling temperature';
COMMENT ON COLUMN decisions.opponents IS 'agents in the other seats, in their order';
COMMENT ON COLUMN decisions.ratings IS 'ratings of the opponents when the match ended';
COMMENT ON COLUMN decisions.score IS 'score of the seat';
COMMENT ON COLUMN decisions.rank IS 'rank of the seat, 1 for the best';
COMMENT ON COLUMN decisions.step IS 'gradient step that trained on the decision, or dropped it; NULL before';
COMMENT ON COLUMN decisions.outcome IS 'trained; masked, cut off or too long, and skipped, with its whole step, from which nothing was learned; or why it or its trajectory was dropped: stale, filtered, refused, voided, given_up, late';
COMMENT ON COLUMN decisions.reward IS 'reward of the decision, before transforms';
COMMENT ON COLUMN decisions.advantage IS 'advantage that the step trained with; with trainer.part_credit, the mean over the choices of the reply';

CREATE VIEW position AS
    SELECT sequence, time FROM kept.position;
COMMENT ON VIEW position IS 'how far the tables have come';

CREATE VIEW unreadable_events AS
    SELECT type, count(*) AS events, min(sequence) AS first, max(sequence) AS last
    FROM kept.all_unreadable GROUP BY type;
COMMENT ON VIEW unreadable_events IS 'events that this version cannot read, by type';

CREATE VIEW rating_corrections AS
    SELECT sequence, time, game, system, through, r.agent, r.rating, r.games, r.rest[1] AS deviation
    FROM (SELECT * EXCLUDE ratings, unnest(ratings) AS r FROM kept.all_corrections);
COMMENT ON VIEW rating_corrections IS 'standings after a correction, one row per agent; they replace all ratings before';

CREATE VIEW configuration AS
    SELECT sequence, config FROM configurations WHERE sequence > 0 ORDER BY sequence DESC LIMIT 1;
COMMENT ON VIEW configuration IS 'the configuration that holds now';

CREATE VIEW checkpoints AS
    SELECT agent, policy, version, parent, adapter, reason, active, joined_sequence, joined_time,
           promoted_sequence, retired_sequence
    FROM agents WHERE kind = 'checkpoint';
COMMENT ON VIEW checkpoints IS 'the agents that are versions of a policy';

CREATE VIEW current_ratings AS
    FROM ratings_at(9223372036854775807);
COMMENT ON VIEW current_ratings IS 'everybody who was ever rated, versions that are no agents too; under the official system';

CREATE VIEW leaderboard AS
    FROM leaderboard_at(9223372036854775807);
COMMENT ON VIEW leaderboard IS 'agents, and the newest rated version, by official rating; wins and mean rank are of rated matches';

CREATE VIEW lineage AS
    WITH made AS (
        SELECT g.policy, p.version, min(g.step) AS first_step, max(g.step) AS last_step, count(*) AS steps,
               list(g.batch ORDER BY g.step) AS batches, sum(len(g.matches))::BIGINT AS matches,
               sum(g.accepted)::BIGINT AS accepted, sum(g.stale)::BIGINT AS stale,
               sum(g.refused)::BIGINT AS refused, sum(g.voided)::BIGINT AS voided
        FROM gradient_steps g ASOF JOIN policies p ON g.policy = p.policy AND g.step <= p.version
        GROUP BY g.policy, p.version
    )
    SELECT p.policy || '@' || p.version AS agent, policy, version, p.parent, p.adapter, p.sequence, p.time,
           c.agent IS NOT NULL AS is_checkpoint, c.parent AS parent_checkpoint, m.* EXCLUDE (policy, version)
    FROM policies p LEFT JOIN made m USING (policy, version)
         LEFT JOIN checkpoints c USING (policy, version);
COMMENT ON VIEW lineage IS 'every published version: adapter, parent, and the steps since the version before';

CREATE VIEW rollout_ledger AS
    WITH generated AS (
        SELECT DISTINCT regexp_extract(agent, '^(.+)@(0|[1-9][0-9]{0,17})$', 1) AS policy, m.match_id, m.sequence
        FROM kept.all_matches m JOIN kept.all_match_seats s USING (sequence)
        WHERE m.purpose = 'training' AND m.experience <> '' AND s.trainable
              AND regexp_extract(agent, '^(.+)@(0|[1-9][0-9]{0,17})$', 1) <> ''
    ), used AS (
        SELECT policy, match_id, max(step) AS step
        FROM (SELECT policy, step, unnest(matches) AS match_id FROM gradient_steps) GROUP BY ALL
    ), begun AS (
        SELECT policy, p.match_id AS match_id, min(p."left") AS remain
        FROM (SELECT policy, unnest(parts) AS p FROM gradient_steps) GROUP BY ALL
    ), dropped AS (
        SELECT policy, match_id, arg_min(reason, step) AS reason, min(step) AS step
        FROM (SELECT policy, step, d.reason AS reason, unnest(d.matches) AS match_id
              FROM (SELECT policy, step, unnest(dropped) AS d FROM gradient_steps))
        WHERE reason NOT IN ('copy', 'failed') GROUP BY ALL
    ), branched AS (SELECT coalesce(max(through), 0) AS through FROM branches)
    SELECT policy, match_id,
           CASE WHEN d.reason IS NOT NULL THEN d.reason WHEN u.step IS NOT NULL AND coalesce(b.remain, 0) = 0
                THEN 'trained' WHEN g.sequence <= (FROM branched) THEN 'abandoned' ELSE 'pending' END AS fate,
           coalesce(d.step, u.step) AS step, g.sequence
    FROM generated g FULL JOIN used u USING (policy, match_id) FULL JOIN dropped d USING (policy, match_id)
         LEFT JOIN begun b USING (policy, match_id);
COMMENT ON VIEW rollout_ledger IS 'every trajectory, its `fate`, the step that decided it, and the `sequence` of its match';

-- Two sources that must agree: the matches, each of which is followed to its end, and what the steps counted.
CREATE VIEW ledger AS
    WITH followed AS (
        SELECT policy, count(*) AS generated, count(*) FILTER (fate = 'trained') AS trained,
               count(*) FILTER (fate = 'abandoned') AS abandoned, count(*) FILTER (fate = 'pending') AS pending,
               count(*) FILTER (sequence IS NULL) AS unrecorded
        FROM rollout_ledger GROUP BY policy
    ), counted AS (
        SELECT policy, sum(accepted)::BIGINT AS trained, sum(stale)::BIGINT AS stale,
               sum(filtered)::BIGINT AS filtered, sum(voided)::BIGINT AS voided, sum(refused)::BIGINT AS refused
        FROM gradient_steps GROUP BY policy
    ), named AS (
        SELECT policy, sum(len(d.matches)) FILTER (d.reason = 'given_up')::BIGINT AS given_up,
               sum(len(d.matches)) FILTER (d.reason = 'late')::BIGINT AS late
        FROM (SELECT policy, unnest(dropped) AS d FROM gradient_steps) GROUP BY policy
    ), summed AS (
        SELECT policy, coalesce(f.generated, 0) AS generated, coalesce(c.trained, 0) AS trained,
               coalesce(c.stale, 0) AS stale, coalesce(c.filtered, 0) AS filtered, coalesce(c.voided, 0) AS voided,
               coalesce(c.refused, 0) AS refused, coalesce(n.given_up, 0) AS given_up,
               coalesce(n.late, 0) AS late, coalesce(f.abandoned, 0) AS abandoned,
               coalesce(f.unrecorded, 0) AS unrecorded, f.trained AS followed, f.pending AS waiting
        FROM followed f FULL JOIN counted c USING (policy) LEFT JOIN named n USING (policy)
    )
    SELECT policy, generated, trained, stale, filtered, voided, refused, given_up, late, abandoned,
           generated - trained - stale - filtered - voided - refused - given_up - late - abandoned AS pending,
           unrecorded,
           coalesce(followed, 0) = trained AND pending = coalesce(waiting, 0) AS balanced
    FROM summed ORDER BY policy;
COMMENT ON VIEW ledger IS 'per policy, what became of its trajectories; `balanced`: what steps counted and each one''s fate agree';

CREATE VIEW spending AS
    WITH budgets AS (
        SELECT b.key AS agent, try_cast(b.value->>'$.remote.budget' AS DOUBLE) AS budget
        FROM configuration c, json_each(c.config, '$.agents') b
    )
    SELECT agent, count(DISTINCT match_id) AS matches, sum(requests)::BIGINT AS requests,
           sum(prompt_tokens)::BIGINT AS prompt_tokens, sum(completion_tokens)::BIGINT AS completion_tokens,
           sum(tokens)::BIGINT AS tokens, sum(uncounted)::BIGINT AS uncounted, sum(cost) AS cost,
           any_value(budget) AS budget
    FROM remote_requests LEFT JOIN budgets USING (agent) GROUP BY agent;
COMMENT ON VIEW spending IS 'what each remote agent has cost, and its `budget` as it is now';

CREATE VIEW tainted_steps AS
    SELECT g.policy, g.step, g.sequence, g.match_id, v.sequence AS voided_sequence, v.reason AS void_reason
    FROM (SELECT policy, step, sequence, unnest(matches) AS match_id FROM gradient_steps) g JOIN voids v
      ON v.match_id = g.match_id AND v.sequence > g.sequence;
COMMENT ON VIEW tainted_steps IS 'matches that a gradient step used and that were voided later';
