-- What read codes (core/plan.py) give, and the errors of nodes among them that failed. $1 namespace, $2 run ids, $3 codes, in parallel.
-- Locks: none. Index: tasks_pkey.
select s.run_id, s.code, s.value, s.error
  from (select u.run_id, u.code, -- include _read
          from unnest($2::uuid[], $3::int[]) as u(run_id, code) offset 0) s
 where s.value is not null or s.error is not null
