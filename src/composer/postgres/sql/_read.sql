-- What a task reads, by read code `u.code` of run `u.run_id` ($1 is the namespace): core/plan.py takes the codes apart.
-- `value`, and `error` for a node that failed.
case
  when u.code >= -1 then (select case u.code when -1 then s.input else s.output end from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = u.code and s.item = -1 and s.state = 'completed')
  when u.code > -10000 and u.code % 2 = 0 then (select '[' || coalesce(string_agg(s.output, ',' order by s.item), '') || ']' from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-2 - u.code) / 2 and s.item >= 0 and s.state = 'completed')
  when u.code > -10000 then (select '[' || coalesce(string_agg(case s.state
        when 'completed' then '{"state":"completed","value":' || s.output || ',"error":null}'
        when 'failed' then '{"state":"failed","value":null,"error":' || s.error || '}' else '{"state":"cancelled","value":null,"error":null}' end, ',' order by s.item), '') || ']' from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-3 - u.code) / 2 and s.item >= 0 and s.state <> 'cancelled')
  when (-u.code - 10000) % 200001 >= 100000 then (select s.output from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-u.code - 10000) / 200001 and s.item >= 0 and s.state = 'completed'
    order by s.item offset (-u.code - 10000) % 200001 - 100000 limit 1)
  else (select s.output from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-u.code - 10000) / 200001 and s.item >= 0 and s.state = 'completed'
    order by s.item desc offset 99999 - (-u.code - 10000) % 200001 limit 1)
end as value,
case when u.code <> -1 then (select s.error from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.item = -1 and s.state = 'failed'
      and s.node = case when u.code >= 0 then u.code when u.code > -10000 then (-2 - u.code) / 2 else (-u.code - 10000) / 200001 end) end as error
