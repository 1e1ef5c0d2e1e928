-- Lost dispatch: ready tasks of running runs without an outbox row get one; outbox rows whose task is not ready go.
-- $1 namespace, $2 how many, $3 untouched for seconds. Locks: tasks and outbox rows SKIP LOCKED. Index: runs_open, tasks_pkey, outbox_task.
-- Returns: how many were put back, how many removed.
with lost as materialized (
  select t.run_id, t.node, t.item, t.queue, t.priority, t.step
    from (select id from composer.runs r where r.namespace = $1 and r.status in ('scheduled', 'running', 'compensating')
             and r.status in ('running', 'compensating') and r.quarantine is null
             and r.updated_at < now() - make_interval(secs => $3::float8) order by r.created_at limit $2) r
   cross join lateral (
      select t.* from composer.tasks t where t.namespace = $1 and t.run_id = r.id and t.state = 'ready'
         and not exists (select from composer.outbox o where o.namespace = $1 and o.run_id = t.run_id and o.node = t.node and o.item = t.item offset 0)
       for no key update skip locked
    ) t
),
put as (
  insert into composer.outbox (namespace, queue, priority, run_id, node, item, step) select $1, queue, priority, run_id, node, item, step from lost
  returning queue
),
dead as materialized (
  select o.ctid as at from composer.outbox o
   where o.namespace = $1 and not exists (
      select from composer.tasks t where t.namespace = $1 and t.run_id = o.run_id and t.node = o.node and t.item = o.item and t.state = 'ready' offset 0)
   limit $2 for update skip locked
),
gone as (
  delete from composer.outbox o using dead where o.ctid = dead.at returning 1
)
select (select count(*) from put) as put, (select count(*) from gone) as removed, (select array_agg(distinct queue) from put) as queues
