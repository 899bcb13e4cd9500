-- Diversity: opponents are drawn in the shares of the sampler's mix.
--
-- While a bucket is empty its share goes to the others, so `$buckets` holds the mean target under the standings of each
-- draw. Every bucket's share has to be within the tolerance of its target with its whole 95 % interval, so too few draws
-- fail. The standard error is the ratio estimator's with matches for clusters (Cochran, Sampling Techniques, 1977, 6.3).
WITH buckets AS (
    SELECT unnest(from_json($buckets,
                            '[{"bucket":"VARCHAR","target":"DOUBLE","configured":"DOUBLE","specified":"DOUBLE"}]'),
                  recursive := true)
), drawn AS (
    SELECT match_id, bucket, count(*) AS picks FROM opponents_sampled
    WHERE sequence <= $upto AND regexp_extract(hero, '^(.+)@([0-9]+)$', 1) = $policy
          AND NOT starts_with(match_id, $session)
    GROUP BY ALL
), matches AS (
    SELECT match_id, sum(picks) AS picks FROM drawn GROUP BY match_id
), total AS (
    SELECT count(*) AS matches, sum(picks) AS picks FROM matches
), shares AS (
    SELECT b.bucket, any_value(b.target) AS target, any_value(b.configured) AS configured,
           any_value(b.specified) AS specified, sum(coalesce(d.picks, 0)) / any_value(t.picks) AS share,
           1.96 * sqrt(sum(pow(coalesce(d.picks, 0) - b.target * m.picks, 2))) / any_value(t.picks) AS half
    FROM buckets b CROSS JOIN total t CROSS JOIN matches m
         LEFT JOIN drawn d ON d.match_id = m.match_id AND d.bucket = b.bucket
    GROUP BY b.bucket
)
SELECT 'draws' AS figure, format('{:,} opponents for {:,} matches by {}', coalesce(picks, 0)::BIGINT, matches, $sampler) AS measured,
       'one or more with a known target' AS expected, EXISTS (FROM shares) AS met,
       coalesce(nullif($problem, ''), 'train longer (stop.steps)') AS advice
FROM total
UNION ALL
SELECT bucket, format('{:.1f} % ({:.1f} to {:.1f})', 100 * share, greatest(100 * (share - half), 0), least(100 * (share + half), 100)),
       format('{:.1f} % ±{:.0f}', 100 * target, 100 * $tolerance), abs(share - target) + half <= $tolerance,
       CASE WHEN abs(share - target) <= $tolerance THEN 'train longer (stop.steps)' ELSE '' END
FROM (FROM shares ORDER BY target DESC, bucket)
UNION ALL
SELECT 'configured mix', string_agg(format('{} {:g} %', bucket, 100 * coalesce(configured, 0)), ', ' ORDER BY specified DESC, bucket),
       'the specification has ' || string_agg(format('{} {:g} %', bucket, 100 * specified), ', ' ORDER BY specified DESC, bucket),
       NULL, ''
FROM buckets HAVING bool_or(abs(coalesce(configured, 0) - coalesce(specified, 0)) > 1e-9)
