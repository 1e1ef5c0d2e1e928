-- Runs as they are now. $1 namespace, $2 run ids. Locks: none. Index: runs_pkey.
select r.id, r.plan, r.status, r.version, r.letters, r.counters, r.priority as run_priority
  from unnest($2::uuid[]) as v(id)
 cross join lateral (select * from composer.runs r where r.namespace = $1 and r.id = v.id offset 0) r
