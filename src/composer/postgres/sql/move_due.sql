-- Delayed tasks that are due become ready. No decision, no version: the task row is the witness.
-- $1 namespace, $2 how many. Locks: tasks SKIP LOCKED. Index: tasks_wakes. Returns: how many were moved.
with t as materialized (
  select run_id, node, item from composer.tasks
   where state = 'delayed' and wake_at <= now() and namespace = $1 order by wake_at limit $2
     for no key update skip locked
),
u as (
  insert into composer.tasks as x (namespace, run_id, node, item, state) select $1, run_id, node, item, 'ready' from t
  on conflict (namespace, run_id, node, item) do update set state = 'ready', wake_at = null where x.state = 'delayed'
  returning x.queue, x.priority, x.run_id, x.node, x.item, x.step
),
o as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step) select $1, queue, priority, run_id, node, item, step from u
  returning queue
),
w as materialized (
  select pg_notify('composer', json_build_object('namespace', $1::text, 'ready', (select case when count(distinct queue) <= 15 then array_agg(distinct queue) else '{*}' end from o))::text)
   where exists (select from o) and exists (select from composer.sleepers s where s.namespace = $1 and s.expires_at > now())
)
select (select count(*) from u) as moved, (select array_agg(distinct queue) from o) as queues, (select count(*) from w) as notified
