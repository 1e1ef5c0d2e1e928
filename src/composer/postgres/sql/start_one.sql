-- Stores one new run without an idempotency key: the rules of start.sql, in half of the plan nodes.
-- $1 namespace; $2..$16 the run; $17..$23 a row a root task; $24 owner, $25 lease seconds of what is handed over at once.
-- Locks: none that waits. Index: runs_pkey. Returns: as start.sql, one row.
with r as (
  insert into composer.runs (namespace, id, workflow, plan, status, version, letters, counters, priority, tags, starts_at, deadline_at, finished_at)
  values ($1, $2::uuid, $3::text, $4::int, $5::text, 1, $6::text, $7::text, $12::smallint, $13::text,
          coalesce($15::timestamptz, clock_timestamp() + make_interval(secs => $14::float8)), clock_timestamp() + make_interval(secs => $16::float8),
          case when $5::text in ('completed', 'failed', 'cancelled') then clock_timestamp() end)
  on conflict (namespace, id) do nothing
  returning id
),
i as (
  insert into composer.tasks (namespace, run_id, node, item, state, input, output, error)
  select $1, id, -1, -1, 'completed', $8::text, $9::text, $10::text from r
),
t as (
  insert into composer.tasks (namespace, run_id, node, item, step, queue, priority, reads, state, attempt, delivery,
                              lease_seconds, lease_owner, lease_expires_at, started_at)
  select $1, r.id, n.node, -1, n.step, n.queue, n.priority, n.reads::int[], n.state, 1,
         case n.state when 'leased' then 1 else 0 end, n.lease_seconds,
         case n.state when 'leased' then $24::text end,
         case n.state when 'leased' then clock_timestamp() + make_interval(secs => coalesce(n.lease_seconds, $25::float8)) end,
         case n.state when 'leased' then clock_timestamp() end
    from r cross join unnest($17::int[], $18::text[], $19::text[], $20::smallint[], $21::text[], $22::text[], $23::float8[])
      as n(node, step, queue, priority, reads, state, lease_seconds)
  returning node, item, step, queue, priority, state
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1, queue, priority, $2::uuid, node, item, step from t where state = 'ready'
  returning queue
),
h as (
  insert into composer.history (namespace, run_id, version, changes) select $1, id, 1, $11::text from r
),
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select case when count(distinct queue) <= 15 then array_agg(distinct queue) else '{*}' end from o),
                   'timer', least($14::float8, $16::float8) < 30 or $15::timestamptz < now() + interval '30 s')::text)
   where least($14::float8, $16::float8) < 30 or $15::timestamptz < now() + interval '30 s'
      or exists (select from o) and exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now())
)
select 1 as ord, $2::uuid as run_id, exists (select from r) as created, '' as digest, extract(epoch from clock_timestamp())::float8 as at,
       (select count(*) from w) as notified
