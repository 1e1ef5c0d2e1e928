-- Leased tasks whose lease is over, oldest first. $1 namespace, $2 how many. Locks: none, the commit looks again. Index: tasks_leases.
-- now(), not clock_timestamp(): a volatile function cannot be an index condition; it errs late, which is safe.
-- Those of quarantined runs keep their lease, so they are left out before the page is cut off, not after.
select t.run_id, t.node, t.item, t.attempt, t.delivery, t.failures, t.crashes, t.lease_owner, extract(epoch from t.started_at)::float8 as at,
       r.plan, r.status, r.version, r.letters, r.counters, r.priority as run_priority
  from composer.tasks t
 cross join lateral (select * from composer.runs r where r.namespace = $1 and r.id = t.run_id and r.quarantine is null offset 0) r
 where t.state = 'leased' and t.lease_expires_at < now() and t.namespace = $1
 order by t.lease_expires_at limit $2
