-- Runs with all their tasks, history and outbox rows, as one statement sees them. $1 namespace, $2 after this id, $3 how many.
-- Locks: none. Index: runs_pkey, tasks_pkey, maps_pkey, history's, outbox_task. Returns: one row a run; the three lists are JSON.
select r.namespace, r.id, r.workflow, r.plan, r.status, r.version, r.letters, r.counters, r.priority as run_priority, r.tags, r.quarantine,
       r.starts_at, r.deadline_at, r.created_at as run_created_at, r.updated_at, r.finished_at as run_finished_at,
       (select json_agg(row_to_json(t)) from (select * from composer.tasks t where t.namespace = $1 and t.run_id = r.id order by t.node, t.item) t)::text as tasks,
       (select json_agg(row_to_json(h)) from (select version, at, changes from composer.history h where h.namespace = $1 and h.run_id = r.id order by h.version) h)::text as history,
       (select json_agg(row_to_json(m)) from (select * from composer.maps m where m.namespace = $1 and m.run_id = r.id) m)::text as maps,
       (select json_agg(json_build_array(o.node, o.item)) from composer.outbox o where o.namespace = $1 and o.run_id = r.id)::text as dispatched
  from (select * from composer.runs r where r.namespace = $1 and r.id > $2::uuid order by r.id limit $3) r
 order by r.id
