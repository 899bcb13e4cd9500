-- No regression: the hero is never weaker than a baseline, once it is warm.
--
-- `$strengths` holds Bradley-Terry ratings over all rated matches, with the hero's versions pooled by tenths of the
-- training: single versions have too few matches. A tenth is below a baseline if the whole 95 % interval of the
-- difference is. As that alone would pass a tenth with hardly any matches, every interval must also exclude a deficit of
-- `$margin` points. The official rating has no intervals, so it is shown for information.
WITH strengths AS (
    SELECT unnest(from_json($strengths, '[{"agent":"VARCHAR","tenth":"BIGINT","rating":"DOUBLE","half":"DOUBLE"}]'),
                  recursive := true)
), tenths AS (
    SELECT tenth, rating, half FROM strengths WHERE tenth >= $warm_up
), baselines AS (
    SELECT a.agent, a.joined_sequence, s.rating, s.half FROM agents a LEFT JOIN strengths s ON s.agent = a.agent AND s.tenth IS NULL
    WHERE a.baseline AND a.joined_sequence <= $upto
), differences AS (
    SELECT b.agent, t.tenth, t.rating - b.rating AS difference, sqrt(t.half * t.half + b.half * b.half) AS half
    FROM baselines b CROSS JOIN tenths t WHERE b.rating IS NOT NULL
), judged AS (
    SELECT agent, count(*) AS tenths, count(*) FILTER (difference + half < 0) AS below,
           arg_min(tenth, difference) AS tenth, min(difference) AS worst, arg_min(half, difference) AS half,
           min(difference - half) AS least
    FROM differences GROUP BY agent
), official AS (
    SELECT v.version, v.rating - max(b.rating) AS difference
    FROM version_ratings v JOIN version_ratings b ON b.policy = v.policy AND b.version = v.version AND b.baseline
    WHERE v.policy = $policy AND NOT v.baseline AND v.sequence <= $upto GROUP BY v.version, v.rating
    QUALIFY v.version > min(v.version) OVER ()
)
(SELECT b.agent AS figure,
       CASE WHEN b.rating IS NULL THEN 'not measured: in no rated match with the others'
            WHEN j.tenths IS NULL THEN 'not measured: no version has a rated match after the warm-up'
            ELSE format('{} of {} tenths of the training below; the worst, number {}: {:+.0f} ±{:.0f}', below, tenths,
                        tenth + 1, worst, j.half) END AS measured,
       format('no tenth below, every interval above -{:.0f}', $margin) AS expected,
       coalesce(below = 0 AND least >= -$margin, false) AS met,
       CASE WHEN b.rating IS NULL THEN 'name it in evaluation.gatekeepers'
            WHEN j.tenths IS NULL THEN 'train longer (stop.steps), or lower evaluation.every'
            WHEN below > 0 THEN '' ELSE 'raise evaluation.gatekeeper_games, or lower evaluation.every' END AS advice
FROM baselines b LEFT JOIN judged j USING (agent) ORDER BY b.joined_sequence)
UNION ALL
SELECT 'baselines', 'not measured: none in this league', 'one or more', false, 'set agents.NAME.kind to bot'
WHERE NOT EXISTS (FROM baselines)
UNION ALL
SELECT 'official rating, by chance too', format('{} of {} evaluated versions below the best baseline; the worst {:+.0f}',
              count(*) FILTER (difference < 0), count(*), min(difference)), '', NULL, ''
FROM official HAVING count(*) > 0
