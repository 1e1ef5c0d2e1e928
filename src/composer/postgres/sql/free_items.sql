-- Frees held items of a map for which there is room. A commit of items does this itself; this is for those it could not see.
-- $1 namespace, $2 run, $3 node. Locks: the run (the only wait), its map, the items. Index: runs_pkey, maps_pkey, tasks_pkey.
-- Returns: the queues of the freed items.
with locked as materialized (
  select r.status, r.letters, r.quarantine from composer.runs r where r.id = $2::uuid and r.namespace = $1 for no key update
),
old as materialized (
  select m.* from locked l cross join lateral (
    select * from composer.maps m where m.namespace = $1 and m.run_id = $2::uuid and m.node = $3::int for no key update offset 0
  ) m
   where l.status = 'running' and l.quarantine is null and substr(l.letters, $3::int + 1, 1) = 'M' and m.held > 0 and m.active < m.most_active
),
f as materialized (
  select t.* from old cross join lateral (
    select t.item from composer.tasks t
     where t.namespace = $1 and t.run_id = $2::uuid and t.node = $3::int and t.item >= old.next_held and t.state = 'held'
     order by t.item limit old.most_active - old.active for no key update
  ) t
),
u as (
  insert into composer.tasks as t (namespace, run_id, node, item, state) select $1, $2::uuid, $3::int, item, 'ready' from f
  on conflict (namespace, run_id, node, item) do update set state = 'ready'
  returning t.queue, t.priority, t.item, t.step
),
m as (
  insert into composer.maps as x (namespace, run_id, node, held, active, next_held)
  select $1, $2::uuid, $3::int, count(*), count(*), max(item) + 1 from f having count(*) > 0
  on conflict (run_id, node, namespace) do update
     set held = x.held - excluded.held, active = x.active + excluded.active, next_held = greatest(x.next_held, excluded.next_held)
),
-- Items that were stored while this statement waited for the run are not to be seen yet: once more, then.
wk as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, wake_at)
  select $1, $2::uuid, $3::int, -1, 'waiting', case when (select count(*) from f) < least(held, most_active - active) then clock_timestamp() + interval '1 s' end
    from old
  on conflict (namespace, run_id, node, item) do update set wake_at = excluded.wake_at where t.state = 'waiting'
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1, queue, priority, $2::uuid, $3::int, item, step from u
  returning queue
),
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select array_agg(distinct queue) from o))::text)
   where exists (select from o) and exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now())
)
select (select array_agg(distinct queue) from o) as queues, (select count(*) from w) as notified
