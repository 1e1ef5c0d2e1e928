-- Lost dispatch: ready tasks of running runs without an outbox row get one; outbox rows whose task is not ready go.
-- One page of open runs and one of outbox rows, after where the last page ended: their number costs a pass nothing, and
-- those that are in order stand before no others.
-- $1 namespace, $2 how many of each, $3 untouched for seconds, $4 and $5 runs after this creation and id, $6 outbox rows after this id.
-- Locks: what is put right only, SKIP LOCKED. Index: runs_open, tasks_pkey, outbox_task, outbox_pkey.
-- Returns: how many were put back, how many removed; where the next page begins, null when this was the last.
with runs as materialized (
  select r.id, r.created_at from composer.runs r
   where r.namespace = $1 and r.finished_at is null
     and r.status in ('running', 'compensating') and r.quarantine is null
     and r.updated_at < now() - make_interval(secs => $3::float8)
     and r.created_at >= $4::timestamptz and (r.created_at > $4 or r.id > $5::uuid)
   order by r.created_at, r.id limit $2
),
lost as materialized (
  select t.run_id, t.node, t.item, t.queue, t.priority, t.step
    from runs r
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
handed as materialized (
  select o.id, o.run_id, o.node, o.item from composer.outbox o where o.namespace = $1 and o.id > $6::bigint order by o.id limit $2
),
-- Only what goes is locked: a claim would pass over the others.
dead as materialized (
  select o.at
    from handed x
   cross join lateral (
      select o.ctid as at from composer.outbox o
       where o.namespace = $1 and o.id = x.id and not exists (
          select from composer.tasks t where t.namespace = $1 and t.run_id = x.run_id and t.node = x.node and t.item = x.item and t.state = 'ready' offset 0)
         for update skip locked
    ) o
),
gone as (
  delete from composer.outbox o using dead where o.ctid = dead.at returning 1
)
select (select count(*) from put) as put, (select count(*) from gone) as removed, (select array_agg(distinct queue) from put) as queues,
       last.created_at as after_created, last.id as after_run,
       (select max(id) from handed having count(*) = $2) as after_row
  from (select 1) as one
  left join lateral (
    select created_at, id from runs where (select count(*) from runs) = $2 order by created_at desc, id desc limit 1
  ) last on true
