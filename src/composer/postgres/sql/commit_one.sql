-- The commonest commit: one report of one run. The rules of commit_steps.sql, in a third of the plan nodes, since what a
-- statement of a few rows costs is mostly the setting up of its plan.
-- $1 namespace, $2 run, $3 its expected version, $4 status, $5 letters, $6 counters, $7 history; $8 whether its result
-- changes, $9 output, $10 error; $11..$22 the reported task; $23..$29 a row a new task; $30 owner, $31 lease seconds.
-- Locks: the run (the only wait), then the task. Index: runs_pkey, tasks_pkey. Returns: as commit_steps.sql.
with locked as materialized (
  select r.version, r.status, r.letters, r.counters, r.quarantine from composer.runs r
   where r.id = $2::uuid and r.namespace = $1 for no key update
),
held as materialized (
  select t.attempt
    from locked l
   cross join lateral (
      select t.attempt, t.delivery, t.state from composer.tasks t
       where t.run_id = $2::uuid and t.node = $11::int and t.item = $12::int and t.namespace = $1 and l.version = $3::int and l.quarantine is null
         for no key update offset 0
    ) t
   where t.attempt = $13::int and t.delivery = $14::int and t.state = 'leased'
),
r as (
  insert into composer.runs as r (namespace, id, workflow, plan, status, version, letters, counters, finished_at)
  select $1, $2::uuid, '', 0, $4::text, 1, $5::text, $6::text, case when $4::text in ('completed', 'failed', 'cancelled') then clock_timestamp() end
    from held
  on conflict (namespace, id) do update
     set version = r.version + 1, status = excluded.status, letters = excluded.letters, counters = excluded.counters,
         updated_at = clock_timestamp(), finished_at = excluded.finished_at
),
d as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, attempt, delivery, failures, output, error, wake_at, details)
  select $1, $2::uuid, $11::int, $12::int, $15::text, $16::int, $17::int, $18::int, $19::text, $20::text,
         clock_timestamp() + make_interval(secs => $21::float8), $22::text from held
  on conflict (namespace, run_id, node, item) do update
     set state = excluded.state, attempt = t.attempt + excluded.attempt, delivery = t.delivery + excluded.delivery,
         failures = t.failures + excluded.failures, output = excluded.output, error = excluded.error,
         lease_owner = null, lease_expires_at = null, wake_at = excluded.wake_at,
         details = coalesce(excluded.details, t.details),
         finished_at = case when excluded.state in ('completed', 'failed', 'cancelled') then clock_timestamp() end
  returning t.node, t.item, t.step, t.queue, t.priority, t.state
),
f as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, output, error)
  select $1, $2::uuid, -1, -1, 'completed', $9::text, $10::text from held where $8::bool
  on conflict (namespace, run_id, node, item) do update set output = excluded.output, error = excluded.error
),
n as (
  insert into composer.tasks (namespace, run_id, node, item, step, queue, priority, reads, state, attempt, delivery,
                              lease_seconds, lease_owner, lease_expires_at, started_at)
  select $1, $2::uuid, n.node, -1, n.step, n.queue, n.priority, n.reads::int[], n.state, 1,
         case n.state when 'leased' then 1 else 0 end, n.lease_seconds,
         case n.state when 'leased' then $30::text end,
         case n.state when 'leased' then clock_timestamp() + make_interval(secs => coalesce(n.lease_seconds, $31::float8)) end,
         case n.state when 'leased' then clock_timestamp() end
    from held cross join unnest($23::int[], $24::text[], $25::text[], $26::smallint[], $27::text[], $28::text[], $29::float8[])
      as n(node, step, queue, priority, reads, state, lease_seconds)
  returning node, item, step, queue, priority, state
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1, z.queue, z.priority, $2::uuid, z.node, z.item, z.step from (select * from n union all select node, item, step, queue, priority, state from d) z
   where z.state = 'ready'
  returning queue
),
h as (
  insert into composer.history (namespace, run_id, version, changes) select $1, $2::uuid, $3::int + 1, $7::text from held
),
-- One notification, and only when somebody sleeps, or for a timer due before the coordinators look anyway (30 s).
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select case when count(distinct queue) <= 15 then array_agg(distinct queue) else '{*}' end from o),
                   'ended', case when $4::text in ('completed', 'failed', 'cancelled') then array[$2::uuid] end, 'timer', $21::float8 < 30)::text)
    from held
   where $21::float8 < 30
      or (($4::text in ('completed', 'failed', 'cancelled') or exists (select from o))
          and exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now()))
)
select $2::uuid as id, won, l.version, case when not won and l.version = $3::int then array[1] end as ords,
       case when not won then l.status end as status, case when not won then l.letters end as letters,
       case when not won then l.counters end as counters, l.quarantine, extract(epoch from clock_timestamp())::float8 as at,
       (select count(*) from w) as notified
  from locked l cross join lateral (select exists (select from held) as won offset 0) x
