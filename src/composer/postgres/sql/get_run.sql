-- A run with its tasks, but for map items. $1 namespace, $2 run id. Locks: none. Index: runs_pkey, tasks_pkey.
select r.namespace, r.id, r.workflow, r.plan, r.status, r.version, r.letters, r.counters, r.priority as run_priority, r.tags, r.quarantine,
       r.starts_at, r.deadline_at, r.created_at as run_created_at, r.updated_at, r.finished_at as run_finished_at,
       t.node, t.item, t.state, t.attempt, t.delivery, t.failures, t.crashes, t.queue, t.lease_owner, t.lease_expires_at, t.wake_at, t.input,
       t.output, t.error, t.details, t.created_at, t.started_at, t.finished_at,
       m.total, m.completed, m.failed, m.withdrawn, m.expanded, m.held, m.tolerance, m.first_failed, m.error as map_error, m.retries
  from composer.runs r left join composer.tasks t on t.namespace = r.namespace and t.run_id = r.id and t.item = -1
  left join lateral (select * from composer.maps m where m.namespace = r.namespace and m.run_id = r.id and m.node = t.node offset 0) m on true
 where r.namespace = $1 and r.id = $2
 order by t.node
