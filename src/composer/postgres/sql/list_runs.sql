-- A page of runs, by id: of each status asked for the next ones in index order, then the first of them all, then those that fit.
-- $1 namespace, $2 workflow (null: any), $3 statuses, $4 newest first, $5 ids above this, $6 ids below this, $7 how many to look at,
-- $8 tags as a JSON object (null: any), $9 pattern of the error (null: any), $10 created at or after, $11 created before.
-- Locks: none. Index: runs_status or runs_workflow, runs_pkey, tasks_pkey.
-- Returns: a row a run that fits, in order, each with how many were looked at and the last of them; one row without a run when none fits.
with found as materialized (
  select x.id
    from unnest($3::text[]) as s(status)
   cross join lateral (
      -- One of the four runs: the others' conditions on parameters are false before they begin.
      (select r.id from composer.runs r where $2::text is null and $4::bool
          and r.namespace = $1 and r.status || '' = s.status and r.id > $5::uuid and r.id < $6::uuid order by r.id desc limit $7::int)
      union all
      (select r.id from composer.runs r where $2 is null and not $4
          and r.namespace = $1 and r.status || '' = s.status and r.id > $5 and r.id < $6 order by r.id limit $7)
      union all
      (select r.id from composer.runs r where $4
          and r.workflow = $2 and r.namespace = $1 and r.status || '' = s.status and r.id > $5 and r.id < $6 order by r.id desc limit $7)
      union all
      (select r.id from composer.runs r where not $4
          and r.workflow = $2 and r.namespace = $1 and r.status || '' = s.status and r.id > $5 and r.id < $6 order by r.id limit $7)
   ) x
),
page as materialized (
  select id from found order by case when $4 then id end desc, id limit $7
),
fits as materialized (
  select r.*, e.error
    from page p
   cross join lateral (
      select r.id, r.workflow, r.plan, r.status, r.version, r.letters, r.counters, r.priority as run_priority, r.tags, r.quarantine,
             r.created_at, r.finished_at
        from composer.runs r where r.namespace = $1 and r.id = p.id offset 0
    ) r
    left join lateral (
      select t.error from composer.tasks t
       where t.namespace = $1 and t.run_id = r.id and t.node = -1 and t.item = -1 and r.status in ('failed', 'cancelled') offset 0
    ) e on true
   where ($8::text is null or r.tags::jsonb @> $8::jsonb) and ($9::text is null or e.error ~ $9)
     and r.created_at >= coalesce($10::timestamptz, '-infinity') and r.created_at < coalesce($11::timestamptz, 'infinity')
)
select l.looked, l.reached, f.*
  from (select (select count(*) from page) as looked,
               (select id from page order by case when $4 then id end, id desc limit 1) as reached) l
  left join fits f on true
 order by case when $4 then f.id end desc, f.id
