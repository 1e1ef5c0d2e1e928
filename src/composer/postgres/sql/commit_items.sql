-- The commit of map items: reports of items of many runs. Additive: it asks for no version, so that any number of workers
-- report items of one run side by side; counts that reach an end are decided afterwards, under the version.
-- $1 namespace; $2..$17 a row a report: run, node, item, fence, attempt, delivery, new state, what to add to attempt,
-- delivery, failures and crashes, output, error, delay, details, history entry.
-- fence 1: the delivery is the current one, and nobody has claimed the item since. fence 2: it is, and its lease is over.
-- Locks: runs in id order (the only wait in the system), then maps, then items in key order, outbox rows SKIP LOCKED.
-- Index: runs_pkey, maps_pkey, tasks_pkey, outbox_task.
-- Returns: one row a run that exists and a map of it (node null: none counted); `ords` are the reports that were applied.
with c as materialized (
  select * from unnest($2::uuid[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[])
    with ordinality as c(run_id, node, item, fence, attempt, delivery, ord)
),
locked as materialized (
  select r.*
    from (select distinct run_id from c order by run_id) v
   cross join lateral (
      select r.id, r.plan, r.version, r.status, r.letters, r.counters, r.priority, r.quarantine from composer.runs r
       where r.namespace = $1 and r.id = v.run_id for no key update offset 0
    ) r
),
-- array_agg is a barrier: every run is locked before anything of it is looked at.
open as materialized (
  select unnest(array_agg(id)) as id from locked where status = 'running' and quarantine is null
),
m as materialized (
  select r.letter, x.*
    from (select distinct run_id, node from c where (run_id in (select id from open)) is true order by run_id, node) g
   cross join lateral (
      select substr(r.letters, g.node + 1, 1) as letter from composer.runs r where r.namespace = $1 and r.id = g.run_id for no key update offset 0
    ) r
   cross join lateral (
      select x.run_id, x.node, x.held, x.active, x.most_active, x.next_held from composer.maps x
       where x.namespace = $1 and x.run_id = g.run_id and x.node = g.node for no key update offset 0
    ) x
   where r.letter in ('M', 'D')
),
checked as materialized (
  select * from c where ((run_id, node) in (select run_id, node from m)) is true order by run_id, node, item
),
fit as materialized (
  select c.ord, t.state as was
    from checked c cross join lateral (
      select t.attempt, t.delivery, t.state, t.lease_expires_at from composer.tasks t
       where t.namespace = $1 and t.run_id = c.run_id and t.node = c.node and t.item = c.item for no key update offset 0
    ) t
   where t.attempt = c.attempt and t.delivery = c.delivery
     and case c.fence when 1 then t.state in ('leased', 'ready', 'delayed', 'held')
                      when 2 then t.state = 'leased' and t.lease_expires_at < clock_timestamp()
                      else false end
),
-- A map that drains begins nothing again: what would be tried once more is withdrawn.
cw as materialized (
  select c.*, case when c.next in ('ready', 'delayed') and ((c.run_id, c.node) in (select run_id, node from m where letter = 'D')) is true
                   then 'withdrawn' else c.next end as state
    from unnest($2::uuid[], $3::int[], $4::int[], $8::text[], $9::int[], $10::int[], $11::int[], $12::int[], $13::text[], $14::text[], $15::float8[], $16::text[], $17::text[])
    with ordinality as c(run_id, node, item, next, attempt_add, delivery_add, failures_add, crashes_add, output, error, delay, details, entry, ord)
   where (ord in (select ord from fit)) is true
),
d as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, attempt, delivery, failures, crashes, output, error, wake_at, details)
  select $1, run_id, node, item, state, attempt_add, delivery_add, failures_add, crashes_add, output, error,
         case state when 'delayed' then clock_timestamp() + make_interval(secs => delay) end, details
    from cw
  on conflict (namespace, run_id, node, item) do update
     set state = excluded.state, attempt = t.attempt + excluded.attempt, delivery = t.delivery + excluded.delivery,
         failures = t.failures + excluded.failures, crashes = t.crashes + excluded.crashes,
         output = excluded.output, error = excluded.error, lease_owner = null, lease_expires_at = null, wake_at = excluded.wake_at,
         details = coalesce(excluded.details, t.details),
         finished_at = case when excluded.state in ('completed', 'failed', 'withdrawn') then clock_timestamp() end
  returning t.run_id, t.node, t.item, t.step, t.queue, t.priority, t.state
),
-- Outbox rows of items that were reported late, after they had been put back. One that a claim holds is dropped by that claim.
g as (
  delete from composer.outbox o using (
    select q.at
      from (select run_id, node, item from c where (ord in (select ord from fit where was = 'ready')) is true) z
     cross join lateral (
        select q.ctid as at from composer.outbox q where q.namespace = $1 and q.run_id = z.run_id and q.node = z.node and q.item = z.item
           for update skip locked
      ) q
  ) q where o.ctid = q.at
),
k as materialized (
  select run_id, node, count(*) filter (where state = 'completed')::int as completed, count(*) filter (where state = 'failed')::int as failed,
         count(*) filter (where state = 'withdrawn')::int as withdrawn, count(*) filter (where state in ('completed', 'failed', 'withdrawn'))::int as settled,
         min(item) filter (where state = 'failed') as first_failed, (array_agg(error order by item) filter (where state = 'failed'))[1] as error
    from cw group by run_id, node
),
-- What settles makes room under max_concurrency for items that are held, in index order.
room as materialized (
  select m.run_id, m.node, m.next_held, least(m.held, m.most_active - m.active + k.settled) as count
    from m join k on k.run_id = m.run_id and k.node = m.node
   where m.letter = 'M' and m.held > 0 and m.most_active is not null
),
freed as materialized (
  select t.*
    from room cross join lateral (
      select t.run_id, t.node, t.item from composer.tasks t
       where t.namespace = $1 and t.run_id = room.run_id and t.node = room.node and t.item >= room.next_held and t.state = 'held'
       order by t.item limit greatest(0, room.count) for no key update
    ) t
),
fr as (
  insert into composer.tasks as t (namespace, run_id, node, item, state) select $1, run_id, node, item, 'ready' from freed
  on conflict (namespace, run_id, node, item) do update set state = 'ready'
  returning t.run_id, t.node, t.item, t.step, t.queue, t.priority, t.state
),
fc as materialized (
  select run_id, node, count(*)::int as freed, max(item) + 1 as next_held from freed group by run_id, node
),
mu as (
  insert into composer.maps as x (namespace, run_id, node, completed, failed, withdrawn, active, held, next_held, first_failed, error)
  select $1, k.run_id, k.node, k.completed, k.failed, k.withdrawn, coalesce(fc.freed, 0) - k.settled, -coalesce(fc.freed, 0), coalesce(fc.next_held, 0),
         coalesce(k.first_failed, -1), k.error
    from k left join fc on fc.run_id = k.run_id and fc.node = k.node
  on conflict (run_id, node, namespace) do update
     set completed = x.completed + excluded.completed, failed = x.failed + excluded.failed, withdrawn = x.withdrawn + excluded.withdrawn,
         active = x.active + excluded.active, held = x.held + excluded.held, next_held = greatest(x.next_held, excluded.next_held),
         first_failed = case when x.first_failed < 0 then excluded.first_failed else x.first_failed end,
         error = case when x.first_failed < 0 then excluded.error else x.error end
  returning x.*
),
-- The map's own task is what moves the run should this process die before it has decided what follows; and what frees
-- items that were stored while this statement waited for the run.
wk as (
  insert into composer.tasks as t (namespace, run_id, node, item, state, wake_at)
  select $1, run_id, node, -1, 'waiting',
         clock_timestamp() + make_interval(secs => case when held > 0 and active < most_active then 0 else 5 end)
    from mu where completed + failed + withdrawn >= total or failed > tolerance or (held > 0 and active < most_active)
  on conflict (namespace, run_id, node, item) do update set wake_at = least(t.wake_at, excluded.wake_at) where t.state = 'waiting'
  returning t.wake_at
),
h as (
  insert into composer.history (namespace, run_id, version, changes)
  select $1, e.run_id, l.version + 1, '{"events":[' || e.entries || ']}'
    from (select run_id, string_agg(case when state = 'withdrawn' then left(entry, -1) || ',"withdrawn":true}' else entry end, ',' order by ord) as entries
            from cw group by run_id) e
    join locked l on l.id = e.run_id
),
r as (
  insert into composer.runs as r (namespace, id, workflow, plan, status, version, letters)
  select distinct $1, run_id, '', 0, 'running', 1, '' from cw
  on conflict (namespace, id) do update set version = r.version + 1, updated_at = clock_timestamp()
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step)
  select $1, queue, priority, run_id, node, item, step from (select * from d union all select * from fr) z where state = 'ready'
  returning queue
),
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select case when count(distinct queue) <= 15 then array_agg(distinct queue) else '{*}' end from o),
                   'timer', exists (select from cw where state = 'delayed' and delay < 30) or exists (select from wk where wake_at < clock_timestamp() + interval '1 s'))::text)
   where exists (select from cw where state = 'delayed' and delay < 30) or exists (select from wk where wake_at < clock_timestamp() + interval '1 s')
      or (exists (select from o) and exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now()))
)
select l.id, l.plan, l.status, l.letters, l.counters, l.priority as run_priority, l.quarantine, a.ords,
       case when a.ords is null then l.version else l.version + 1 end as version,
       mu.node, mu.total, mu.completed, mu.failed, mu.withdrawn, mu.expanded, mu.held, mu.tolerance, mu.first_failed, mu.error, mu.retries,
       extract(epoch from clock_timestamp())::float8 as at, (select count(*) from w) as notified, (select array_agg(distinct queue) from o) as queues
  from locked l
  left join lateral (select array_agg(cw.ord::int) as ords from cw where cw.run_id = l.id) a on true
  left join mu on mu.run_id = l.id
