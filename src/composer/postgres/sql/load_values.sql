-- Outputs of completed nodes, errors of failed ones; node -1 gives the run's input. $1 namespace, $2 run ids, $3 nodes, in parallel.
-- Locks: none. Index: tasks_pkey.
select s.run_id, s.node, s.value, s.error
  from unnest($2::uuid[], $3::int[]) as v(run_id, node)
 cross join lateral (
    select t.run_id, t.node, case t.node when -1 then t.input else t.output end as value, case t.state when 'failed' then t.error end as error
      from composer.tasks t
     where t.namespace = $1 and t.run_id = v.run_id and t.node = v.node and t.item = -1 and t.state in ('completed', 'failed') offset 0
  ) s
