-- Tasks of some runs that an owner holds: what a commit with an unknown outcome may have handed over.
-- $1 namespace, $2 owner, $3 run ids. Locks: none. Index: tasks_pkey, runs_pkey. Returns: as claim.sql.
select l.run_id, l.node, l.item, l.step, l.attempt, l.delivery, l.failures, l.crashes, l.input, l.details,
       r.plan, r.version, r.status, r.letters, r.counters, r.priority as run_priority, d.nodes, d.outputs, d.errors, extract(epoch from l.started_at)::float8 as at
  from unnest($3::uuid[]) as v(id)
 cross join lateral (
    select * from composer.tasks t where t.namespace = $1 and t.run_id = v.id and t.lease_owner = $2 offset 0
  ) l
 cross join lateral (
    select plan, version, status, letters, counters, priority from composer.runs r where r.namespace = $1 and r.id = l.run_id offset 0
  ) r
  left join lateral (
    select array_agg(s.node) as nodes, array_agg(s.value) as outputs, array_agg(s.error) as errors
      from unnest(l.reads) as u(node)
     cross join lateral (select s.node, case s.node when -1 then s.input else s.output end as value, case s.state when 'failed' then s.error end as error
                           from composer.tasks s
                          where s.namespace = $1 and s.run_id = l.run_id and s.node = u.node and s.item = -1 and s.state in ('completed', 'failed') offset 0) s
  ) d on true
