-- Seconds until the next thing comes due. $1 namespace. Locks: none. Index: tasks_wakes, tasks_waits, runs_starts, runs_deadline.
select extract(epoch from least(
    (select wake_at from composer.tasks where state = 'delayed' and namespace = $1 order by wake_at limit 1),
    (select wake_at from composer.tasks where state = 'waiting' and wake_at is not null and namespace = $1 order by wake_at limit 1),
    (select starts_at from composer.runs where status = 'scheduled' and namespace = $1 and quarantine is null order by starts_at limit 1),
    (select deadline_at from composer.runs where status = 'running' and deadline_at is not null and namespace = $1 and quarantine is null
      order by deadline_at limit 1)) - clock_timestamp())::float8 as seconds
