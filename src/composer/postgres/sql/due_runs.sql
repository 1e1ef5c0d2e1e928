-- Runs whose start or deadline has come. $1 namespace, $2 how many of each. Locks: none, the commit looks again. Index: runs_starts, runs_deadline.
(select 'start' as kind, id, plan, status, version, letters, counters, priority as run_priority from composer.runs
  where status = 'scheduled' and starts_at <= now() and namespace = $1 and quarantine is null order by starts_at limit $2)
union all
(select 'deadline' as kind, id, plan, status, version, letters, counters, priority as run_priority from composer.runs
  where status = 'running' and deadline_at is not null and deadline_at <= now() and namespace = $1 and quarantine is null order by deadline_at limit $2)
