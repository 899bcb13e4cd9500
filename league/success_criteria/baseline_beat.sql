-- Baseline beat: the last evaluated version wins against a baseline in all other seats.
--
-- A game is won by the strictly highest of all seats, so a tie is not a win. Failed games count as not won, since
-- otherwise a hero would gain by failing where it is about to lose. The games of one round of seats share a seed, so they
-- are not quite independent; the interval assumes that they are.
WITH chosen AS (
    SELECT e.evaluation_id, e.agent, e.matches AS games
    FROM evaluations e JOIN policies p ON e.agent = p.policy || '@' || p.version
    WHERE e.suite = 'benchmark' AND e.opponents = [$opponent] AND p.policy = $policy AND e.finished_sequence <= $upto
    ORDER BY p.version DESC LIMIT 1
), played AS (
    SELECT s.role, s.won
    FROM chosen c JOIN matches m USING (evaluation_id) JOIN match_seats s ON s.sequence = m.sequence AND s.agent = c.agent
    WHERE m.sequence <= $upto AND coalesce(m.voided_sequence > $upto, true)
), seats AS (
    SELECT role, count(*) AS games, count(*) FILTER (won) AS wins FROM played GROUP BY role
), counted AS (
    SELECT c.agent, c.games, (SELECT count(*) FROM played) AS completed,
           (SELECT count(*) FROM played WHERE won) AS wins,
           (SELECT coalesce(max(games) - min(games), 0) FROM seats) AS uneven
    FROM chosen c
), judged AS (
    SELECT *, games - completed AS failed, wilson(wins, games).low AS low, wilson(wins, games).high AS high FROM counted
)
SELECT 'version' AS figure, coalesce((SELECT agent FROM judged), 'not measured') AS measured,
       'a finished benchmark against ' || $opponent AS expected, EXISTS (FROM judged) AS met,
       'evaluation.benchmark_opponents names it, and training ends (stop.steps)' AS advice
UNION ALL
SELECT 'games', format('{:,}', games), format('{:,} or more', $games), games >= $games,
       format('set evaluation.benchmark_games to {}', $games) FROM judged
UNION ALL
SELECT 'games won', format('{:,} of {:,} = {:.1f} % ({:.1f} to {:.1f})', wins, games, 100.0 * wins / games, 100 * low, 100 * high),
       format('the whole interval above {:.0f} %', 100 * $win_share), low > $win_share,
       CASE WHEN wins > $win_share * games THEN 'raise evaluation.benchmark_games' ELSE 'train longer (stop.steps)' END
FROM judged
UNION ALL
SELECT 'games failed or voided', format('{:,}', failed), 'they count as not won', NULL, '' FROM judged
UNION ALL
SELECT 'difference between seats', format('{:,} games', uneven), 'none but for failed games', uneven <= failed,
       'set evaluation.benchmark_games to a multiple of the seats' FROM judged
UNION ALL
SELECT 'worst seat', (SELECT format('{}: {:,} of {:,}', role, wins, games) FROM seats ORDER BY wins / games, role LIMIT 1),
       '', NULL, '' FROM judged WHERE (SELECT count(*) FROM seats) > 1
