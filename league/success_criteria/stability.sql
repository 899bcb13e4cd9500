-- Stability: gradient steps follow each other without faults. A run shorter than the specification's horizon is judged
-- over the steps that it has. An interruption by a person, another run or a restarted trainer is not a stall.
WITH steps AS (
    SELECT step, sequence, time, skipped, lag(sequence) OVER (ORDER BY step) AS previous,
           date_diff('second', lag(time) OVER (ORDER BY step), time) / 60 AS minutes
    FROM gradient_steps WHERE policy = $policy AND sequence <= $upto
), interruptions AS (
    SELECT sequence FROM pauses UNION ALL SELECT sequence FROM branches
    UNION ALL SELECT joined_sequence FROM workers WHERE role = 'trainer'
), stalls AS (
    SELECT step, minutes FROM steps s WHERE minutes > $stall_minutes
           AND NOT EXISTS (FROM interruptions i WHERE i.sequence BETWEEN s.previous AND s.sequence)
), begun AS (
    SELECT *, lead(joined_sequence) OVER (PARTITION BY worker ORDER BY joined_sequence) AS again FROM workers
), crashes AS (
    SELECT worker, coalesce(left_reason, 'began again without having left') AS reason FROM begun
    WHERE (left_sequence <= $upto AND left_reason <> 'done')
          OR (again <= $upto AND coalesce(left_sequence > again, true))
), ended AS (
    SELECT (SELECT count(*) FROM matches WHERE sequence <= $upto) AS finished,
           (SELECT count(*) FROM match_failures WHERE sequence <= $upto) AS failed
)
SELECT 'gradient steps' AS figure, format('{:,}', count(*)) AS measured,
       format('one or more; the specification has {:,}', $steps) AS expected, count(*) > 0 AS met,
       'train (stop.steps)' AS advice
FROM steps
UNION ALL
SELECT 'steps missing', format('{:,}', max(step) - min(step) + 1 - count(*)), '0', max(step) - min(step) + 1 = count(*), ''
FROM steps HAVING count(*) > 0
UNION ALL
SELECT 'steps skipped', format('{:,}', count(*) FILTER (skipped)), '0', count(*) FILTER (skipped) = 0,
       'the trainer''s log gives the reason' FROM steps
UNION ALL
SELECT 'stalls', format('{:,}', count(*)) || coalesce(format('; step {} after {:.0f} minutes', min(step), arg_min(minutes, step)), ''),
       '0', count(*) = 0, format('alarms.stall_minutes is {:g}', $stall_minutes)
FROM stalls
UNION ALL
SELECT 'worker crashes', format('{:,}', count(*)) || coalesce('; ' || min(worker || ': ' || reason), ''), '0',
       count(*) = 0, 'the workers'' logs give the reasons' FROM crashes
UNION ALL
SELECT 'out of memory', format('{:,}', count(*)), '0', count(*) = 0, 'lower inference.max_adapters'
FROM events WHERE type = 'AdapterSlotsReduced' AND sequence <= $upto
UNION ALL
SELECT 'dead letters', coalesce(format('{:,}', $dead_letters::BIGINT), 'not known for an earlier event'),
       '0', $dead_letters::BIGINT = 0, 'league dead-letters'
UNION ALL
SELECT 'events unreadable', format('{:,}', count(*)), '0', count(*) = 0, ''
FROM kept.all_unreadable WHERE sequence <= $upto
UNION ALL
SELECT 'matches failed', format('{:,} of {:,}', failed, finished + failed), format('{:g} % at most', 100 * $failed_share),
       failed <= $failed_share * (finished + failed), '' FROM ended
UNION ALL
SELECT 'ledger', CASE WHEN bool_and(balanced) THEN 'balanced' ELSE 'not balanced' END, 'balanced', bool_and(balanced),
       'league ledger' FROM ledger HAVING count(*) > 0
