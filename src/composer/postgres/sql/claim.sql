-- Leases ready tasks of the queues and steps a worker serves, with everything their bodies need.
-- $1 namespace, $2 queues (most important first), $3 steps, $4 how many, $5 owner, $6 lease seconds.
-- Locks: outbox rows, then their tasks, both SKIP LOCKED: never waits, so it cannot deadlock with a commit.
-- Index: outbox_pop, outbox_plain, tasks_pkey, runs_pkey.
-- Returns: the leased tasks; `nodes` (read codes), `outputs` and `errors` run in parallel, and a node that failed has an error; items of one map share those of the first.
-- $7 is 0 or 1 at random: the odd one of an odd number.
-- Up to half of what is claimed is plain steps, whatever stands before them in the queue, so that a map of a hundred
-- thousand items delays nobody; never one of a lower priority than the first in the queue.
with f as materialized (
  select o.ctid as at, o.run_id, o.node, o.item
    from unnest($2::text[]) with ordinality as q(queue, ord)
    cross join lateral (
      select x.priority from composer.outbox x where x.namespace = $1 and x.queue = q.queue and x.step = any ($3::text[])
       order by x.priority desc, x.id limit 1
    ) top
    cross join lateral (
      select x.ctid, x.run_id, x.node, x.item from composer.outbox x
       where x.namespace = $1 and x.queue = q.queue and x.item < 0 and x.priority >= top.priority and x.step = any ($3::text[])
       order by x.priority desc, x.id limit ($4::int + $7::int) / 2
         for update skip locked
    ) o
   limit ($4::int + $7::int) / 2
),
p as materialized (
  select at, run_id, node, item from f
  union all
  select * from (
    select o.ctid as at, o.run_id, o.node, o.item
      from unnest($2::text[]) with ordinality as q(queue, ord)
      cross join lateral (
        select x.ctid, x.run_id, x.node, x.item from composer.outbox x
         where x.namespace = $1 and x.queue = q.queue and x.step = any ($3::text[]) and (x.ctid in (select at from f)) is not true
         order by x.priority desc, x.id limit $4::int - (select count(*) from f)
           for update skip locked
      ) o
     limit $4::int - (select count(*) from f)
  ) rest
),
-- A task that some commit is changing right now keeps its outbox row for the next claim.
t as materialized (
  select p.at, t.*
    from p
    cross join lateral (
      select r.id from composer.runs r
       where r.namespace = $1 and r.id = p.run_id and (r.deadline_at is null or r.deadline_at > now()) and r.quarantine is null
      offset 0
    ) r
    cross join lateral (
      select t.run_id, t.node, t.item, t.state, t.crashes from composer.tasks t
       where t.namespace = $1 and t.run_id = p.run_id and t.node = p.node and t.item = p.item
         for no key update skip locked
    ) t
),
-- Tasks that have lost two workers come one at a time: the one that ends its worker does not take the others along a third time.
taken as materialized (
  select * from t where crashes < 2 or state <> 'ready'
  union all
  select * from (select * from t where crashes >= 2 and state = 'ready' limit 1) suspect
),
-- Outbox rows to drop: those whose task we hold (leased now, or no longer ready), those of deleted tasks, and those of
-- runs that have passed their deadline or cannot be decided: nobody is handed their tasks any more, and at the head of
-- a queue they would stand in the way of all behind them.
gone as materialized (
  select at from taken
  union all
  select at from p where (at in (select at from t)) is not true
     and (not exists (select from composer.tasks x where x.namespace = $1 and x.run_id = p.run_id and x.node = p.node and x.item = p.item offset 0)
          or exists (select from composer.runs r where r.namespace = $1 and r.id = p.run_id and (r.deadline_at <= now() or r.quarantine is not null) offset 0))
),
g as (
  delete from composer.outbox o using gone where o.ctid = gone.at
),
-- INSERT .. ON CONFLICT is an UPDATE by primary key that no planner estimate can turn into a scan.
l as (
  insert into composer.tasks as x (namespace, run_id, node, item, state, lease_owner, lease_expires_at)
  select $1, run_id, node, item, 'leased', $5, clock_timestamp() from taken where state = 'ready'
  on conflict (namespace, run_id, node, item) do update
     set state = 'leased', delivery = x.delivery + 1, lease_owner = $5,
         lease_expires_at = clock_timestamp() + make_interval(secs => coalesce(x.lease_seconds, $6::float8)), started_at = clock_timestamp()
   where x.state = 'ready'
  returning x.run_id, x.node, x.item, x.step, x.attempt, x.delivery, x.failures, x.crashes, x.reads, x.input, x.details
),
first as materialized (
  select run_id, node, min(item) as item from l where item >= 0 group by run_id, node
)
select l.run_id, l.node, l.item, l.step, l.attempt, l.delivery, l.failures, l.crashes, l.input, l.details,
       r.plan, r.version, r.status, r.letters, r.counters, r.priority as run_priority, d.nodes, d.outputs, d.errors, extract(epoch from clock_timestamp())::float8 as at
  from (select l.*, case when item < 0 or ((run_id, node, item) in (select run_id, node, item from first)) is true then reads end as needs from l) l
 cross join lateral (
    select plan, version, status, letters, counters, priority from composer.runs r where r.namespace = $1 and r.id = l.run_id offset 0
  ) r
  left join lateral (
    select array_agg(s.code) as nodes, array_agg(s.value) as outputs, array_agg(s.error) as errors
      from (select u.code, -- include _read
              from (select l.run_id, code from unnest(l.needs) as u(code)) u offset 0
           ) s where s.value is not null or s.error is not null
  ) d on true
