-- Macros and views for analysis: shares with intervals, payoffs, ratings over time, benchmarks.

-- Ends of the 95 % score interval of a share, as in `schemas.numbers.wilson_interval`.
CREATE MACRO wilson(wins, games) AS
    CASE WHEN games > 0 THEN struct_pack(
        low := greatest((wins / games + 1.9208 / games
               - 1.96 * sqrt(wins / games * (1 - wins / games) / games + 0.9604 / games / games)) / (1 + 3.8416 / games), 0),
        high := least((wins / games + 1.9208 / games
               + 1.96 * sqrt(wins / games * (1 - wins / games) / games + 0.9604 / games / games)) / (1 + 3.8416 / games), 1)
    ) ELSE struct_pack(low := 0.0, high := 1.0) END;

-- In a match, every seat of one agent is compared with every seat of the other but those of its own team; their mean is
-- the match's share, so that a match counts once however many seats the two held.
CREATE MACRO payoff_at(upto, playing := NULL, purposes := NULL) AS TABLE
    WITH conf AS (
        SELECT coalesce(playing, game) AS game FROM configurations WHERE sequence <= upto ORDER BY sequence DESC LIMIT 1
    ), counted AS (
        SELECT m.sequence FROM kept.all_matches m JOIN conf USING (game)
        WHERE m.sequence <= upto AND (purposes IS NULL OR list_contains(purposes, m.purpose))
              AND m.match_id NOT IN (SELECT match_id FROM voids WHERE sequence <= upto)
    ), held AS (
        SELECT sequence, agent, score, side FROM kept.all_match_seats SEMI JOIN counted USING (sequence)
        WHERE isfinite(score)
    ), met AS (
        SELECT sequence, a.agent, b.agent AS opponent, count(*) FILTER (a.score > b.score) AS wins,
               count(*) FILTER (a.score = b.score) AS draws, count(*) FILTER (a.score < b.score) AS losses
        FROM held a JOIN held b USING (sequence) WHERE a.agent <> b.agent AND a.side <> b.side GROUP BY ALL
    ), summed AS (
        SELECT agent, opponent, count(*) AS games,
               -- Rounded: the order of a parallel sum is not fixed.
               round(fsum((wins + draws / 2) / (wins + draws + losses)), 9) AS points,
               sum(wins)::BIGINT AS wins, sum(draws)::BIGINT AS draws, sum(losses)::BIGINT AS losses
        FROM met GROUP BY ALL
    )
    SELECT agent, opponent, games, wins, draws, losses, points / games AS share,
           wilson(points, games).low AS low, wilson(points, games).high AS high
    FROM summed ORDER BY agent, opponent;

CREATE VIEW payoff AS
    FROM payoff_at(9223372036854775807);
COMMENT ON VIEW payoff IS 'per pair of agents: `games` they met in, seat pairs won, drawn, lost, and the `share` of the points with its 95 % interval';

CREATE VIEW rating_history AS
    SELECT game, system, agent, sequence, time, after AS rating, rest[1] AS deviation, 1 AS games FROM kept.all_ratings
    UNION ALL
    SELECT game, system, r.agent, sequence, time, r.rating, r.rest[1], 0
    FROM (SELECT * EXCLUDE ratings, unnest(ratings) AS r FROM kept.all_corrections);
COMMENT ON VIEW rating_history IS 'every rating that an agent ever had, corrections too; `games`: 1 where a match changed it';

CREATE VIEW benchmark_results AS
    SELECT evaluation_id, array_to_string(opponents, ', ') AS opponent, agent, wins, games, failed,
           coalesce(wins / nullif(games, 0), 0.0) AS share, wilson(wins, games).low AS low,
           wilson(wins, games).high AS high, mean_score, mean_rank, finished_sequence AS sequence
    FROM evaluations WHERE suite = 'benchmark' AND finished_sequence IS NOT NULL ORDER BY requested_sequence;
COMMENT ON VIEW benchmark_results IS 'finished benchmarks: an agent in one seat, one opponent in all others; shares won with 95 % intervals';

-- An evaluation is settled when it is finished and its last match is rated.
CREATE VIEW version_ratings AS
    WITH conf AS (
        SELECT game, system FROM configurations ORDER BY sequence DESC LIMIT 1
    ), settled AS (
        SELECT e.agent, p.policy, p.version, max(greatest(e.finished_sequence, coalesce(r.sequence, 0))) AS sequence
        FROM evaluations e JOIN policies p ON e.agent = p.policy || '@' || p.version
             LEFT JOIN kept.all_matches m USING (evaluation_id) LEFT JOIN kept.all_ratings r ON r.match_id = m.match_id
        WHERE e.suite = 'gatekeepers' AND e.finished_sequence IS NOT NULL GROUP BY e.agent, p.policy, p.version
    ), compared AS (
        SELECT *, agent AS rated FROM settled
        UNION ALL SELECT s.*, a.agent FROM settled s JOIN agents a ON a.baseline AND a.joined_sequence <= s.sequence
    ), placed AS (
        SELECT h.agent AS rated, h.sequence, h.rating FROM rating_history h JOIN conf USING (game, system)
    )
    SELECT c.policy, c.version, c.sequence, c.rated AS agent, c.rated <> c.agent AS baseline,
           coalesce(h.rating, a.start_rating) AS rating
    FROM compared c ASOF LEFT JOIN placed h ON c.rated = h.rated AND c.sequence >= h.sequence
         LEFT JOIN agents a ON a.agent = c.rated
    WHERE coalesce(h.rating, a.start_rating) IS NOT NULL ORDER BY c.policy, c.version, baseline, c.rated;
COMMENT ON VIEW version_ratings IS 'official ratings of every evaluated version, and of the baselines beside it, when its evaluation was settled';

CREATE VIEW regressions AS
    SELECT v.policy, v.version, v.agent, v.sequence, v.rating, map_from_entries(list((b.agent, b.rating))) AS below
    FROM version_ratings v JOIN version_ratings b
         ON b.policy = v.policy AND b.version = v.version AND b.baseline AND b.rating > v.rating
    WHERE NOT v.baseline AND v.version > (SELECT min(version) FROM version_ratings f WHERE f.policy = v.policy)
    GROUP BY ALL ORDER BY v.sequence;
COMMENT ON VIEW regressions IS 'evaluated versions, after the first, that were rated below a baseline: `below` says which, and at what rating';
