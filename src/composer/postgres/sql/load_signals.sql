-- Signals of a run, in the order they came. $1 namespace, $2 run id, $3 names or null. Locks: none. Index: signals_pkey.
select s.id, s.name, s.payload, s.dedupe, s.node
  from composer.signals s
 where s.namespace = $1 and s.run_id = $2::uuid and ($3::text[] is null or s.name = any ($3::text[]))
 order by s.id
