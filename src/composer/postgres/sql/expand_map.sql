-- Stores one page of a map's items, if it is the next one and the map goes on. Additive, as commit_items.sql is: the number
-- of items stored so far is its guard, so that it may be sent again, and by several coordinators.
-- $1 namespace, $2 run, $3 node, $4 first item, $5 items in all, $6 their inputs, $7 step, $8 queue, $9 priority, $10 read codes,
-- $11 lease seconds, $12 most active or null, $13 tolerance, $14 how often the run was retried, $15 digest of the list, $16 the node's name as JSON.
-- A retry keeps completed items, unless the list is another one. A page that was read before the retry is refused.
-- Locks: the run (the only wait), its map, the map's own task, the page's items. Index: runs_pkey, maps_pkey, tasks_pkey.
-- Returns: one row; `stored` says whether the page was taken, the rest how far the map is (null without one).
with locked as materialized (
  select r.version, r.status, r.letters, r.counters, r.quarantine from composer.runs r where r.id = $2::uuid and r.namespace = $1 for no key update
),
open as materialized (
  select version from locked where status = 'running' and quarantine is null and substr(letters, $3::int + 1, 1) = 'M'
     and coalesce((nullif(counters, '')::json ->> 'retries')::int, 0) = $14::int
),
old as materialized (
  select m.* from open cross join lateral (
    select * from composer.maps m where m.namespace = $1 and m.run_id = $2::uuid and m.node = $3::int for no key update offset 0
  ) m
),
-- A map's first row cannot be seen by a statement that waited for the one that made it. The map's own task, which was there
-- before, can: its delivery is 1 from the first page on.
own as materialized (
  select t.delivery from open cross join lateral (
    select t.delivery from composer.tasks t where t.namespace = $1 and t.run_id = $2::uuid and t.node = $3::int and t.item = -1 and t.state = 'waiting'
       for no key update offset 0
  ) t
),
go as materialized (
  select open.version, case when $4::int = 0 then 0 else o.active end as active,
         case when $4::int = 0 then coalesce(o.digest <> $15::text, false) else o.afresh end as afresh
    from open cross join own left join old o on true
   where case when o.run_id is null then $4::int = 0 and own.delivery = 0 when o.retries < $14::int then $4::int = 0 else o.retries = $14::int and o.expanded = $4::int end
),
page as materialized (
  select $4::int + p.ord::int - 1 as item, p.input from go cross join unnest($6::text[]) with ordinality as p(input, ord)
),
kept as materialized (
  select t.item
    from go cross join page p cross join lateral (
      select t.item, t.state from composer.tasks t
       where t.namespace = $1 and t.run_id = $2::uuid and t.node = $3::int and t.item = p.item for no key update offset 0
    ) t
   where $14::int > 0 and not go.afresh and t.state = 'completed'
),
-- Another list: what items gave of the old one is no part of this one, whether their turn comes again or the list has become
-- shorter. Their rows stay, so that no delivery of theirs is ever counted anew.
x as (
  insert into composer.tasks as t (namespace, run_id, node, item, state)
  select $1, $2::uuid, $3::int, z.item, 'cancelled' from go cross join lateral (
    select t.item from composer.tasks t
     where t.namespace = $1 and t.run_id = $2::uuid and t.node = $3::int and t.item >= cardinality($6::text[]) for no key update
  ) z where go.afresh and $4::int = 0
  on conflict (namespace, run_id, node, item) do update set state = 'cancelled', output = null, error = null, lease_owner = null, lease_expires_at = null,
         wake_at = null, finished_at = clock_timestamp()
),
todo as materialized (
  select p.item, p.input, case when $12::int is null or row_number() over (order by p.item) <= $12::int - go.active then 'ready' else 'held' end as state
    from go cross join page p where (p.item in (select item from kept)) is not true
),
t as (
  insert into composer.tasks as t (namespace, run_id, node, item, step, queue, priority, reads, state, lease_seconds, input)
  select $1, $2::uuid, $3::int, item, $7::text, $8::text, $9::smallint, $10::int[], state, $11::float8, input from todo
  on conflict (namespace, run_id, node, item) do update
     set step = excluded.step, queue = excluded.queue, priority = excluded.priority, reads = excluded.reads, state = excluded.state,
         lease_seconds = excluded.lease_seconds, attempt = t.attempt + 1, failures = 0, crashes = 0, lease_owner = null,
         lease_expires_at = null, started_at = null, finished_at = null, wake_at = null, input = excluded.input, output = null,
         error = null, details = null
  returning t.item, t.state
),
n as materialized (
  select (select count(*) from page)::int as stored, (select count(*) from kept)::int as kept,
         count(*) filter (where state = 'ready')::int as ready, count(*) filter (where state = 'held')::int as held from todo
),
m as (
  insert into composer.maps as x (namespace, run_id, node, total, expanded, completed, held, active, most_active, tolerance, retries, digest, afresh)
  select $1, $2::uuid, $3::int, $5::int, n.stored, n.kept, n.held, n.ready, $12::int, $13::int, $14::int, $15::text, go.afresh from go cross join n
  on conflict (run_id, node, namespace) do update
     set total = excluded.total, most_active = excluded.most_active, tolerance = excluded.tolerance, retries = excluded.retries,
         digest = excluded.digest, afresh = excluded.afresh,
         expanded = case when $4::int = 0 then 0 else x.expanded end + excluded.expanded,
         completed = case when $4::int = 0 then 0 else x.completed end + excluded.completed,
         failed = case when $4::int = 0 then 0 else x.failed end, withdrawn = case when $4::int = 0 then 0 else x.withdrawn end,
         held = case when $4::int = 0 then 0 else x.held end + excluded.held, active = case when $4::int = 0 then 0 else x.active end + excluded.active,
         next_held = case when $4::int = 0 then 0 else x.next_held end, first_failed = case when $4::int = 0 then -1 else x.first_failed end,
         error = case when $4::int = 0 then null else x.error end
  returning x.*
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1, $8::text, $9::smallint, $2::uuid, $3::int, item, $7::text from t where state = 'ready' order by item
  returning queue
),
-- While pages are to come, a coordinator looks again soon, should this one die; and so when a commit could not free what it did not see.
wk as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, wake_at)
  select $1, $2::uuid, $3::int, -1, 'waiting', case when expanded < total then clock_timestamp() + interval '10 s'
                                                     when completed + failed + withdrawn >= total or failed > tolerance
                                                       or (held > 0 and active < most_active) then clock_timestamp() + interval '5 s' end from m
  on conflict (namespace, run_id, node, item) do update set wake_at = excluded.wake_at, delivery = greatest(t.delivery, 1) where t.state = 'waiting'
),
h as (
  insert into composer.history (namespace, run_id, version, changes)
  select $1, $2::uuid, go.version + 1, '{"events":[{"event":"items-expanded","from":' || $4::int || ',"node":' || $16::text || ',"to":' || $4::int + n.stored
         || case when go.afresh then ',"afresh":true' else '' end || '}]}' from go cross join n
),
r as (
  insert into composer.runs as r (namespace, id, workflow, plan, status, version, letters)
  select $1, $2::uuid, '', 0, 'running', 1, '' from go
  on conflict (namespace, id) do update set version = r.version + 1, updated_at = clock_timestamp()
),
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', array[$8::text])::text)
   where exists (select from o) and exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now())
)
select exists (select from go) as stored, s.total, s.completed, s.failed, s.withdrawn, s.expanded, s.held, s.tolerance, s.first_failed, s.error, s.retries,
       exists (select from o) as is_ready, (select count(*) from w) as notified
  from (select 1) one left join lateral (select * from m union all select * from old where not exists (select from go)) s on true
