-- Withdraws up to $4 items of a draining map that have not begun, and all that were never stored. Additive, as commit_items.sql is.
-- $1 namespace, $2 run, $3 node, $4 how many, $5 the node's name as JSON.
-- Locks: the run (the only wait), its map, the items, their outbox rows SKIP LOCKED. Index: runs_pkey, maps_pkey, tasks_pkey, outbox_task.
-- Returns: one row, how many were found and how far the map is (nulls when it does not drain).
with locked as materialized (
  select r.version, r.status, r.letters, r.quarantine from composer.runs r where r.id = $2::uuid and r.namespace = $1 for no key update
),
old as materialized (
  select l.version as run_version, m.*
    from locked l cross join lateral (
      select * from composer.maps m where m.namespace = $1 and m.run_id = $2::uuid and m.node = $3::int for no key update offset 0
    ) m
   where l.status = 'running' and l.quarantine is null and substr(l.letters, $3::int + 1, 1) = 'D'
),
f as materialized (
  select t.* from old cross join lateral (
    select t.item, t.state from composer.tasks t
     where t.namespace = $1 and t.run_id = $2::uuid and t.node = $3::int and t.item >= 0 and t.state in ('held', 'ready', 'delayed')
     order by t.item limit $4::int for no key update
  ) t
),
u as (
  insert into composer.tasks as t (namespace, run_id, node, item, state) select $1, $2::uuid, $3::int, item, 'withdrawn' from f
  on conflict (namespace, run_id, node, item) do update set state = 'withdrawn', wake_at = null, finished_at = clock_timestamp()
),
g as (
  delete from composer.outbox o using (
    select q.at from f cross join lateral (
      select q.ctid as at from composer.outbox q where q.namespace = $1 and q.run_id = $2::uuid and q.node = $3::int and q.item = f.item
         for update skip locked
    ) q where f.state = 'ready'
  ) q where o.ctid = q.at
),
n as materialized (
  select count(*) filter (where f.state = 'held')::int as held,
         count(*) filter (where f.state in ('ready', 'delayed'))::int as active, count(f.item)::int as found
    from f
),
m as (
  insert into composer.maps as x (namespace, run_id, node, withdrawn, held, active)
  select $1, $2::uuid, $3::int, n.found + old.total - old.expanded, n.held, n.active from old cross join n
  on conflict (run_id, node, namespace) do update
     set withdrawn = x.withdrawn + excluded.withdrawn, held = x.held - excluded.held, active = x.active - excluded.active, expanded = x.total
  returning x.*
),
did as materialized (
  select old.run_version, n.found + old.total - old.expanded as withdrawn from old cross join n where n.found + old.total - old.expanded > 0
),
wk as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, wake_at)
  select $1, $2::uuid, $3::int, -1, 'waiting', case when n.found >= $4::int then clock_timestamp() + interval '10 s'
                                                     when m.completed + m.failed + m.withdrawn >= m.total then clock_timestamp() + interval '5 s' end
    from m cross join n
  on conflict (namespace, run_id, node, item) do update set wake_at = excluded.wake_at where t.state = 'waiting'
),
h as (
  insert into composer.history (namespace, run_id, version, changes)
  select $1, $2::uuid, run_version + 1, '{"events":[{"count":' || withdrawn || ',"event":"items-withdrawn","node":' || $5::text || '}]}' from did
),
r as (
  insert into composer.runs as r (namespace, id, workflow, plan, status, version, letters)
  select $1, $2::uuid, '', 0, 'running', 1, '' from did
  on conflict (namespace, id) do update set version = r.version + 1, updated_at = clock_timestamp()
)
select (select found from n) as found, m.total, m.completed, m.failed, m.withdrawn, m.expanded, m.held, m.tolerance, m.first_failed, m.error, m.retries
  from (select 1) one left join m on true
