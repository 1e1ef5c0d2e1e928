-- Stores new runs with their root tasks, idempotency keys and first history rows.
-- $1 namespace; $2..$18 a row a run; $19..$30 a row a root task; $31 owner, $32 lease seconds of what is handed over at once;
-- $33 whether the transaction is somebody else's and goes on: who falls asleep before its end must be told of it too, and
-- a timer that is far away now may be near then.
-- Locks: keys in key order; waits for another start of the same key, for nothing else.
-- Index: run_keys_pkey, runs_pkey.
-- Returns: one row an input row: its position, the run that holds the key (or its own id), whether this call made it,
-- the digest the key was first used with, the time.
with v as materialized (
  select * from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::text[], $9::text[],
                       $10::text[], $11::text[], $12::text[], $13::text[], $14::smallint[], $15::text[], $16::float8[], $17::timestamptz[], $18::float8[])
    with ordinality as v(id, workflow, key, digest, plan, status, letters, counters, input, output, error, changes, priority, tags,
                         starts_in, starts_at, deadline_in, ord)
),
-- One row a key, inserted in key order, so that two batches with the same keys cannot deadlock.
-- DO UPDATE, not DO NOTHING: only that returns a row that was committed after this statement's snapshot.
-- A key past its time belongs to nobody.
k as (
  insert into composer.run_keys as k (namespace, workflow, key, run_id, input_digest)
  select distinct on (workflow, key) $1::text, workflow, key, id, digest
    from v where key is not null order by workflow, key, ord
  on conflict (namespace, workflow, key) do update
     set run_id = case when k.expires_at < now() then excluded.run_id else k.run_id end,
         input_digest = case when k.expires_at < now() then excluded.input_digest else k.input_digest end,
         expires_at = case when k.expires_at < now() then null else k.expires_at end
  returning k.workflow, k.key, k.run_id, k.input_digest
),
-- DO NOTHING on the id makes a repeated start, after an unknown outcome, harmless.
r as (
  insert into composer.runs (namespace, id, workflow, plan, status, version, letters, counters, priority, tags, starts_at, deadline_at, finished_at)
  select $1::text, id, workflow, plan, status, 1, letters, counters, priority, tags,
         coalesce(starts_at, clock_timestamp() + make_interval(secs => starts_in)), clock_timestamp() + make_interval(secs => deadline_in),
         case when status in ('completed', 'failed', 'cancelled') then clock_timestamp() end
    from v where (key is null or id in (select run_id from k)) is true
   order by id
  on conflict (namespace, id) do nothing
  returning id
),
i as (
  insert into composer.tasks (namespace, run_id, node, item, state, input, output, error)
  select $1::text, id, -1, -1, 'completed', input, output, error from v where (id in (select id from r)) is true
),
t as (
  insert into composer.tasks (namespace, run_id, node, item, step, queue, priority, reads, state, attempt, delivery,
                              lease_seconds, lease_owner, lease_expires_at, started_at, wake_at, error, output, finished_at)
  select $1::text, n.run_id, n.node, -1, n.step, n.queue, n.priority, n.reads::int[], n.state, 1,
         case n.state when 'leased' then 1 else 0 end, n.lease_seconds,
         case n.state when 'leased' then $31::text end,
         case n.state when 'leased' then clock_timestamp() + make_interval(secs => coalesce(n.lease_seconds, $32::float8)) end,
         case n.state when 'leased' then clock_timestamp() end,
         coalesce(n.wake_at::timestamptz, clock_timestamp() + make_interval(secs => n.wake_in)), n.error, n.output, case when n.state in ('failed', 'completed') then clock_timestamp() end
    from unnest($19::uuid[], $20::int[], $21::text[], $22::text[], $23::smallint[], $24::text[], $25::text[], $26::float8[], $27::float8[], $28::text[], $29::text[], $30::text[])
      as n(run_id, node, step, queue, priority, reads, state, lease_seconds, wake_in, error, output, wake_at)
   where (n.run_id in (select id from r)) is true
  returning run_id, node, item, step, queue, priority, state
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1::text, queue, priority, run_id, node, item, step from t where state = 'ready'
  returning queue
),
h as (
  insert into composer.history (namespace, run_id, version, changes)
  select $1::text, id, 1, changes from v where (id in (select id from r)) is true
),
soon as materialized (
  select 1 from v where least(starts_in, deadline_in) < 30 or starts_at < now() + interval '30 s'
                     or $33::bool and num_nonnulls(starts_in, deadline_in, starts_at) > 0
  union all select 1 from unnest($27::float8[], $30::text[]) as n(wake_in, wake_at)
   where wake_in < 30 or wake_at::timestamptz < now() + interval '30 s' or $33::bool and num_nonnulls(wake_in, wake_at) > 0
),
-- One notification, and only when somebody sleeps, or for a timer due before the coordinators look anyway (30 s).
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select case when count(distinct queue) <= 15 then array_agg(distinct queue) else '{*}' end from o),
                   'timer', exists (select from soon))::text)
   where exists (select from soon)
      or exists (select from o) and ($33::bool or exists (select from composer.sleepers s where s.namespace = $1::text and s.expires_at > now()))
)
select v.ord, coalesce(k.run_id, v.id) as run_id, v.id in (select id from r) as created,
       coalesce(k.input_digest, v.digest) as digest, extract(epoch from clock_timestamp())::float8 as at, (select count(*) from w) as notified
  from v left join k on k.key = v.key and k.workflow = v.workflow
 order by v.ord
