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
    select array_agg(s.code) as nodes, array_agg(s.value) as outputs, array_agg(s.error) as errors
      from (select u.code, -- include _read
              from (select l.run_id, code from unnest(l.reads) as u(code)) u offset 0
           ) s where s.value is not null or s.error is not null
  ) d on true
