-- A run, its transitions above a version, and the bodies of its nodes that were begun. $1 namespace, $2 run, $3 version, $4 how many.
-- Locks: none. Index: runs_pkey, history's, tasks_pkey.
-- Returns: a row a transition in order, or one without; the first has what was begun, as JSON.
select r.id, r.plan, r.status, r.version, r.letters, r.counters, r.priority as run_priority, h.version as at_version, h.at, h.changes,
       case when coalesce(h.version, $3::int + 1) = $3 + 1 then (
         select json_agg(json_build_array(t.node, t.attempt, t.delivery, t.state = 'cancelled', t.lease_owner, t.started_at))
           from unnest(string_to_array(r.letters, null)) with ordinality as l(letter, ord)
          cross join lateral (
             select t.node, t.attempt, t.delivery, t.state, t.lease_owner, t.started_at from composer.tasks t
              where t.namespace = $1 and t.run_id = r.id and t.node = l.ord - 1 and t.item = -1
                and t.state in ('leased', 'cancelled') and t.started_at is not null offset 0
          ) t
          where l.letter in ('A', 'X')
       )::text end as begun
  from composer.runs r
  left join lateral (
    select h.version, h.at, h.changes from composer.history h
     where h.namespace = $1 and h.run_id = $2 and h.version > $3 order by h.version limit $4::int
  ) h on true
 where r.namespace = $1 and r.id = $2::uuid
 order by h.version
