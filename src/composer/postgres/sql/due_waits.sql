-- Waiting tasks that a coordinator has to look at now. Whoever gets one has $3 seconds before it is due again for all.
-- $1 namespace, $2 how many, $3 seconds. Locks: tasks SKIP LOCKED: never waits. Index: tasks_waits, runs_pkey, maps_pkey.
-- Returns: the tasks with their runs, and for a map how far it is (null before its first page).
with t as materialized (
  select run_id, node, item from composer.tasks
   where state = 'waiting' and wake_at is not null and wake_at <= now() and namespace = $1 order by wake_at limit $2
     for no key update skip locked
),
u as (
  insert into composer.tasks as x (namespace, run_id, node, item, state) select $1, run_id, node, item, 'waiting' from t
  on conflict (namespace, run_id, node, item) do update set wake_at = clock_timestamp() + make_interval(secs => $3::float8) where x.state = 'waiting'
  returning x.run_id, x.node, x.attempt
)
select u.run_id, u.node, u.attempt, to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at, r.plan, r.status, r.version, r.letters, r.counters, r.priority as run_priority,
       m.total, m.completed, m.failed, m.withdrawn, m.expanded, m.held, m.tolerance, m.first_failed, m.error, m.retries
  from u
 cross join lateral (select * from composer.runs r where r.namespace = $1 and r.id = u.run_id and r.quarantine is null offset 0) r
  left join lateral (select * from composer.maps m where m.namespace = $1 and m.run_id = u.run_id and m.node = u.node offset 0) m on true
