-- The commit for everything rarer than a report in time: late reports, expired leases, stops, starts of scheduled runs,
-- retries of failed runs. Hands nothing over at once.
-- $1 namespace; $2..$11 a row a run; $12..$14 a row a run whose result changes; $15..$29 a row a changed task;
-- $30..$41 a row a task that becomes ready or waits (a row that exists is opened again); $42..$46 a row a new signal;
-- $47..$49 a row a signal that a node takes.
-- Locks: runs in id order (the only wait in the system), changed tasks in key order, open tasks of stopped runs, outbox rows SKIP LOCKED.
-- Index: runs_pkey, tasks_pkey, outbox_task.
-- Returns: as commit_steps.sql.
with v as materialized (
  select * from unnest($2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[], $9::bool[], $10::float8[], $11::bool[])
    as v(id, expected, status, letters, counters, changes, plan, restarts, deadline_in, stops)
),
-- fence 1: a report. The delivery is the current one, and nobody has claimed the task since. fence 2: an expiry.
-- fence 3: a wait, which only a decision ends: the version is its guard.
c as materialized (
  select * from unnest($15::uuid[], $16::int[], $17::int[], $18::int[], $19::int[], $20::int[])
    with ordinality as c(run_id, node, item, fence, attempt, delivery, ord)
),
locked as materialized (
  select r.*, v.expected
    from (select id, expected from v order by id) v
   cross join lateral (
      select r.id, r.version, r.status, r.letters, r.counters, r.quarantine from composer.runs r
       where r.namespace = $1 and r.id = v.id for no key update offset 0
    ) r
),
same as materialized (
  select unnest(array_agg(id)) as id from locked where version = expected and quarantine is null
),
checked as materialized (
  select * from c where (run_id in (select id from same)) is true order by run_id, node, item
),
held as materialized (
  select c.ord
    from checked c cross join lateral (
      select t.attempt, t.delivery, t.state, t.lease_expires_at from composer.tasks t
       where t.namespace = $1 and t.run_id = c.run_id and t.node = c.node and t.item = c.item for no key update offset 0
    ) t
   where (c.fence = 3 and (c.attempt = 0 or t.attempt = c.attempt) or t.attempt = c.attempt and t.delivery = c.delivery)
     and case c.fence when 3 then t.state = 'waiting'
                      when 1 then t.state in ('leased', 'ready', 'delayed', 'held')
                      when 2 then t.state = 'leased' and t.lease_expires_at < clock_timestamp()
                      else false end
),
bad as materialized (
  select run_id, ord::int from checked where (ord in (select ord from held)) is not true
),
won as materialized (
  select id from same where (id in (select run_id from bad)) is not true
),
vw as materialized (
  select * from v where (id in (select id from won)) is true
),
cw as materialized (
  select * from unnest($15::uuid[], $16::int[], $17::int[], $21::text[], $22::int[], $23::int[], $24::int[], $25::int[], $26::text[], $27::text[], $28::float8[], $29::text[])
    as c(run_id, node, item, state, attempt_add, delivery_add, failures_add, crashes_add, output, error, delay, details)
   where (run_id in (select id from won)) is true
),
r as (
  insert into composer.runs as r (namespace, id, workflow, plan, status, version, letters, counters, starts_at, deadline_at, finished_at)
  -- The row exists, so that what it begins at is never written; the check on the table looks at it all the same.
  select $1, id, '', plan, status, 1, letters, counters, case status when 'scheduled' then 'epoch'::timestamptz end,
         case when restarts then clock_timestamp() + make_interval(secs => deadline_in) end,
         case when status in ('completed', 'failed', 'cancelled') then clock_timestamp() end from vw
  on conflict (namespace, id) do update
     set version = r.version + 1, plan = excluded.plan, status = excluded.status, letters = excluded.letters, counters = excluded.counters,
         deadline_at = case when excluded.id in (select id from vw where restarts) then excluded.deadline_at else r.deadline_at end,
         updated_at = clock_timestamp(), finished_at = excluded.finished_at
),
d as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, attempt, delivery, failures, crashes, output, error, wake_at, details)
  select $1, run_id, node, item, state, attempt_add, delivery_add, failures_add, crashes_add, output, error,
         clock_timestamp() + make_interval(secs => delay), details
    from cw
  on conflict (namespace, run_id, node, item) do update
     set state = excluded.state, attempt = t.attempt + excluded.attempt, delivery = t.delivery + excluded.delivery,
         failures = t.failures + excluded.failures, crashes = t.crashes + excluded.crashes,
         output = excluded.output, error = excluded.error, lease_owner = null, lease_expires_at = null, wake_at = excluded.wake_at,
         details = coalesce(excluded.details, t.details),
         finished_at = case when excluded.state in ('completed', 'failed', 'cancelled') then clock_timestamp() end
  returning t.run_id, t.node, t.item, t.step, t.queue, t.priority, t.state
),
f as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, output, error)
  select $1, run_id, -1, -1, 'completed', output, error from unnest($12::uuid[], $13::text[], $14::text[]) as f(run_id, output, error)
   where (run_id in (select id from won)) is true
  on conflict (namespace, run_id, node, item) do update set output = excluded.output, error = excluded.error
),
-- open tasks of stopped runs, except those reported in this very batch
ew as materialized (
  select id from vw where stops order by id
),
xw as materialized (
  select t.* from ew cross join lateral (
    select t.run_id, t.node, t.item from composer.tasks t
     where t.namespace = $1 and t.run_id = ew.id and t.state in ('held', 'ready', 'leased', 'delayed', 'waiting')
       for no key update
  ) t
),
x as (
  insert into composer.tasks as t (namespace, run_id, node, item, state)
  select $1, run_id, node, item, 'cancelled' from xw
   where ((run_id, node, item) in (select run_id, node, item from c)) is not true
  on conflict (namespace, run_id, node, item) do update
     set state = 'cancelled', lease_owner = null, lease_expires_at = null, wake_at = null, finished_at = clock_timestamp()
  returning t.run_id, t.node, t.item
),
-- Outbox rows of late reports and of cancelled tasks. One that a claim holds is dropped by that claim.
g as (
  delete from composer.outbox o using (
    select q.at
      from (select run_id, node, item from c where fence = 1 and (run_id in (select id from won)) is true union all select run_id, node, item from x) z
     cross join lateral (
        select q.ctid as at from composer.outbox q where q.namespace = $1 and q.run_id = z.run_id and q.node = z.node and q.item = z.item
           for update skip locked
      ) q
  ) q where o.ctid = q.at
),
n as (
  insert into composer.tasks as t (namespace, run_id, node, item, step, queue, priority, reads, state, lease_seconds, wake_at, error, output, finished_at)
  select $1, n.run_id, n.node, -1, n.step, n.queue, n.priority, n.reads::int[], n.state, n.lease_seconds, coalesce(n.wake_at::timestamptz, clock_timestamp() + make_interval(secs => n.wake_in)),
         n.error, n.output, case when n.state in ('failed', 'completed') then clock_timestamp() end
    from unnest($30::uuid[], $31::int[], $32::text[], $33::text[], $34::smallint[], $35::text[], $36::text[], $37::float8[], $38::float8[], $39::text[], $40::text[], $41::text[])
      as n(run_id, node, step, queue, priority, reads, state, lease_seconds, wake_in, error, output, wake_at)
   where (n.run_id in (select id from won)) is true
  on conflict (namespace, run_id, node, item) do update
     set step = excluded.step, queue = excluded.queue, priority = excluded.priority, reads = excluded.reads, state = excluded.state,
         lease_seconds = excluded.lease_seconds, attempt = t.attempt + 1, failures = 0, crashes = 0, lease_owner = null,
         lease_expires_at = null, started_at = null, finished_at = excluded.finished_at, wake_at = excluded.wake_at, input = null, output = excluded.output, error = excluded.error, details = null
  returning t.run_id, t.node, t.item, t.step, t.queue, t.priority, t.state
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1, queue, priority, run_id, node, item, step from n where state = 'ready'
  union all
  select $1, queue, priority, run_id, node, item, step from d where state = 'ready'
  returning queue
),
-- Signals: new ones, and stored ones that a node takes.
sn as (
  insert into composer.signals (namespace, run_id, name, payload, dedupe, node)
  select $1, run_id, name, payload, dedupe, node from unnest($42::uuid[], $43::text[], $44::text[], $45::text[], $46::int[]) as s(run_id, name, payload, dedupe, node)
   where (run_id in (select id from won)) is true
),
st as (
  update composer.signals s set node = v.node from unnest($47::uuid[], $48::bigint[], $49::int[]) as v(run_id, id, node)
   where s.namespace = $1 and s.run_id = v.run_id and s.id = v.id and (v.run_id in (select id from won)) is true
),
h as (
  insert into composer.history (namespace, run_id, version, changes)
  select $1, id, expected + 1, changes from vw
),
e as materialized (
  select id from vw where status in ('completed', 'failed', 'cancelled')
),
soon as materialized (
  select 1 from cw where delay < 30 union all select 1 from vw where deadline_in < 30
  union all select 1 from unnest($38::float8[], $41::text[]) as n(wake_in, wake_at) where wake_in < 30 or wake_at::timestamptz < now() + interval '30 s'
),
-- Workers with bodies of a stopped run are awake, so a stop is announced whether anybody sleeps or not.
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select case when count(distinct queue) <= 15 then array_agg(distinct queue) else '{*}' end from o),
                   'ended', (select case when count(*) <= 60 then array_agg(id) else '{}' end from e),
                   'stopped', (select case when count(*) <= 40 then array_agg(id) else '{}' end from ew),
                   'timer', exists (select from soon))::text)
   where exists (select from ew) or exists (select from soon)
      or exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now())
)
select l.id, w.won, l.version, case when not w.won and l.version = l.expected then (select array_agg(b.ord) from bad b where b.run_id = l.id) end as ords,
       case when not w.won then l.status end as status, case when not w.won then l.letters end as letters,
       case when not w.won then l.counters end as counters, l.quarantine, extract(epoch from clock_timestamp())::float8 as at,
       (select count(*) from w) as notified
  from locked l cross join lateral (select l.id in (select id from won) as won offset 0) w
