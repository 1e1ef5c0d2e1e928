-- Extends leases and keeps heartbeat details.
-- $1 namespace, $2..$6 the deliveries, $7 lease seconds each, $8 details or null each, $9 owner.
-- Locks: tasks SKIP LOCKED: never waits; a task in the middle of a commit answers 'busy'.
-- Index: tasks_pkey.
-- Returns: one answer a delivery, in order.
with v as materialized (
  select * from unnest($2::uuid[], $3::int[], $4::int[], $5::int[], $6::int[], $7::float8[], $8::text[])
    with ordinality as v(run_id, node, item, attempt, delivery, lease, details, ord)
),
t as materialized (
  select v.ord, v.lease, v.details as kept, t.*, t.attempt = v.attempt and t.delivery = v.delivery as current
    from v cross join lateral (
      select t.run_id, t.node, t.item, t.state, t.attempt, t.delivery from composer.tasks t
       where t.namespace = $1 and t.run_id = v.run_id and t.node = v.node and t.item = v.item for no key update skip locked
    ) t
),
u as (
  insert into composer.tasks as x (namespace, run_id, node, item, state, lease_owner, lease_expires_at, details)
  select $1, run_id, node, item, 'leased', $9, clock_timestamp() + make_interval(secs => lease), kept from t where current and state = 'leased'
  on conflict (namespace, run_id, node, item) do update
     set lease_expires_at = excluded.lease_expires_at, details = coalesce(excluded.details, x.details)
)
select case when t.ord is null then case when exists (
              select from composer.tasks x where x.namespace = $1 and x.run_id = v.run_id and x.node = v.node and x.item = v.item offset 0
            ) then 'busy' else 'lost' end
            when t.current and t.state = 'leased' then 'owned'
            when t.current and t.state in ('ready', 'delayed', 'held') then 'expired'
            when t.state = 'cancelled' then 'cancelled' else 'lost' end as answer
  from v left join t on t.ord = v.ord order by v.ord
