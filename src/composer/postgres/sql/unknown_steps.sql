-- Steps that ready tasks wait for and that nobody knows: neither the asking worker nor any other that lives.
-- $1 namespace, $2 queues, $3 steps the asking worker knows, $4 how many tasks of each queue to look at.
-- Locks: none. Index: outbox_pop; the workers of a namespace are few. Returns: one row a step, with a count and one of its runs.
select o.step, count(*)::int as tasks, (array_agg(o.run_id order by o.id))[1] as run_id
  from unnest($2::text[]) as q(queue)
 cross join lateral (
    select x.step, x.run_id, x.id from composer.outbox x
     where x.namespace = $1 and x.queue = q.queue order by x.priority desc, x.id limit $4 offset 0
  ) o
 where o.step <> all ($3::text[])
   and o.step <> all (array(select unnest(w.steps) from composer.workers w where w.namespace = $1 and w.expires_at > now()))
 group by o.step order by o.step
