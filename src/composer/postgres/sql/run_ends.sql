-- How runs ended, or what they are. $1 namespace, $2 run ids. Locks: none. Index: runs_pkey, tasks_pkey.
select r.id, r.status, t.output, t.error
  from unnest($2::uuid[]) as v(id)
 cross join lateral (select r.id, r.status from composer.runs r where r.namespace = $1 and r.id = v.id offset 0) r
  left join lateral (
    select t.output, t.error from composer.tasks t where t.namespace = $1 and t.run_id = v.id and t.node = -1 and t.item = -1 offset 0
  ) t on true
