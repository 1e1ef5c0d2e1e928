-- The ordinary commit: reports of steps, for many runs at once. Anything rarer goes through commit_rare.sql.
-- $1 namespace; $2..$7 a row a run; $8..$10 a row a run whose result changes; $11..$23 a row a reported task;
-- $24..$35 a row a new task; $36 owner, $37 lease seconds of what is handed over at once.
-- Locks: runs in id order (the only wait in the system), then the reported tasks in key order.
-- Index: runs_pkey, tasks_pkey.
-- Returns: one row a run that exists: won; or the positions of reports whose fence was not met; else the run as it is.
with v as materialized (
  select * from unnest($2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[])
    as v(id, expected, status, letters, counters, changes)
),
c as materialized (
  select * from unnest($11::uuid[], $12::int[], $13::int[], $14::int[], $15::int[]) with ordinality as c(run_id, node, item, attempt, delivery, ord)
),
locked as materialized (
  select r.*, v.expected
    from (select id, expected from v order by id) v
   cross join lateral (
      select r.id, r.version, r.status, r.letters, r.counters, r.quarantine from composer.runs r
       where r.namespace = $1 and r.id = v.id for no key update offset 0
    ) r
),
-- The version is checked on the row as locked, not as in the snapshot. array_agg is a barrier: every run is locked before any task.
same as materialized (
  select unnest(array_agg(id)) as id from locked where version = expected and quarantine is null
),
checked as materialized (
  select * from c where (run_id in (select id from same)) is true order by run_id, node, item
),
held as materialized (
  select c.ord
    from checked c cross join lateral (
      select t.attempt, t.delivery, t.state from composer.tasks t
       where t.namespace = $1 and t.run_id = c.run_id and t.node = c.node and t.item = c.item for no key update offset 0
    ) t
   where t.attempt = c.attempt and t.delivery = c.delivery and t.state = 'leased'
),
bad as materialized (
  select run_id, ord::int from checked where (ord in (select ord from held)) is not true
),
won as materialized (
  select id from same where (id in (select run_id from bad)) is not true
),
-- The winners' share, materialised first: no subquery may sit in the condition of a node that locks or updates.
vw as materialized (
  select * from v where (id in (select id from won)) is true
),
cw as materialized (
  select * from unnest($11::uuid[], $12::int[], $13::int[], $16::text[], $17::int[], $18::int[], $19::int[], $20::text[], $21::text[], $22::float8[], $23::text[])
    as c(run_id, node, item, state, attempt_add, delivery_add, failures_add, output, error, delay, details)
   where (run_id in (select id from won)) is true
),
r as (
  insert into composer.runs as r (namespace, id, workflow, plan, status, version, letters, counters, finished_at)
  select $1, id, '', 0, status, 1, letters, counters, case when status in ('completed', 'failed', 'cancelled') then clock_timestamp() end from vw
  on conflict (namespace, id) do update
     set version = r.version + 1, status = excluded.status, letters = excluded.letters, counters = excluded.counters,
         updated_at = clock_timestamp(), finished_at = excluded.finished_at
),
d as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, attempt, delivery, failures, output, error, wake_at, details)
  select $1, run_id, node, item, state, attempt_add, delivery_add, failures_add, output, error, clock_timestamp() + make_interval(secs => delay), details
    from cw
  on conflict (namespace, run_id, node, item) do update
     set state = excluded.state, attempt = t.attempt + excluded.attempt, delivery = t.delivery + excluded.delivery,
         failures = t.failures + excluded.failures, output = excluded.output, error = excluded.error,
         lease_owner = null, lease_expires_at = null, wake_at = excluded.wake_at,
         details = coalesce(excluded.details, t.details),
         finished_at = case when excluded.state in ('completed', 'failed', 'cancelled') then clock_timestamp() end
  returning t.run_id, t.node, t.item, t.step, t.queue, t.priority, t.state
),
f as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, output, error)
  select $1, run_id, -1, -1, 'completed', output, error from unnest($8::uuid[], $9::text[], $10::text[]) as f(run_id, output, error)
   where (run_id in (select id from won)) is true
  on conflict (namespace, run_id, node, item) do update set output = excluded.output, error = excluded.error
),
n as (
  insert into composer.tasks (namespace, run_id, node, item, step, queue, priority, reads, state, attempt, delivery,
                              lease_seconds, lease_owner, lease_expires_at, started_at, wake_at, error, output, finished_at)
  select $1, n.run_id, n.node, -1, n.step, n.queue, n.priority, n.reads::int[], n.state, 1,
         case n.state when 'leased' then 1 else 0 end, n.lease_seconds,
         case n.state when 'leased' then $36 end,
         case n.state when 'leased' then clock_timestamp() + make_interval(secs => coalesce(n.lease_seconds, $37)) end,
         case n.state when 'leased' then clock_timestamp() end,
         coalesce(n.wake_at::timestamptz, clock_timestamp() + make_interval(secs => n.wake_in)), n.error, n.output, case when n.state in ('failed', 'completed') then clock_timestamp() end
    from unnest($24::uuid[], $25::int[], $26::text[], $27::text[], $28::smallint[], $29::text[], $30::text[], $31::float8[], $32::float8[], $33::text[], $34::text[], $35::text[])
      as n(run_id, node, step, queue, priority, reads, state, lease_seconds, wake_in, error, output, wake_at)
   where (n.run_id in (select id from won)) is true
  returning run_id, node, item, step, queue, priority, state
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1, queue, priority, run_id, node, item, step from n where state = 'ready'
  union all
  select $1, queue, priority, run_id, node, item, step from d where state = 'ready'
  returning queue
),
h as (
  insert into composer.history (namespace, run_id, version, changes)
  select $1, id, expected + 1, changes from vw
),
e as materialized (
  select id from vw where status in ('completed', 'failed', 'cancelled')
),
soon as materialized (
  select 1 from cw where delay < 30 union all select 1 from unnest($32::float8[], $35::text[]) as n(wake_in, wake_at) where wake_in < 30 or wake_at::timestamptz < now() + interval '30 s'
),
-- One notification, and only when somebody sleeps, or for a timer due before the coordinators look anyway (30 s).
-- A payload is at most 8,000 bytes, hence no more than 60 ids and 15 queues.
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select case when count(distinct queue) <= 15 then array_agg(distinct queue) else '{*}' end from o),
                   'ended', (select case when count(*) <= 60 then array_agg(id) else '{}' end from e),
                   'timer', exists (select from soon))::text)
   where exists (select from soon)
      or ((exists (select from o) or exists (select from e))
          and exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now()))
)
select l.id, w.won, l.version, case when not w.won and l.version = l.expected then (select array_agg(b.ord) from bad b where b.run_id = l.id) end as ords,
       case when not w.won then l.status end as status, case when not w.won then l.letters end as letters,
       case when not w.won then l.counters end as counters, l.quarantine, extract(epoch from clock_timestamp())::float8 as at,
       (select count(*) from w) as notified
  from locked l cross join lateral (select l.id in (select id from won) as won offset 0) w
