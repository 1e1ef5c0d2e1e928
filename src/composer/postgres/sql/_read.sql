-- What a task reads, by read code `u.code` of run `u.run_id` ($1 is the namespace): core/plan.py takes the codes apart.
case
  when u.code >= -1 then (select case u.code when -1 then s.input else s.output end from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = u.code and s.item = -1 and s.state = 'completed')
  when u.code > -10000 and u.code % 2 = 0 then (select '[' || coalesce(string_agg(s.output, ',' order by s.item), '') || ']' from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-2 - u.code) / 2 and s.item >= 0 and s.state = 'completed')
  when u.code > -10000 then (select '[' || coalesce(string_agg(case s.state
        when 'completed' then '{"state":"completed","value":' || s.output || '}'
        when 'failed' then '{"state":"failed","error":' || s.error || '}' else '{"state":"cancelled"}' end, ',' order by s.item), '') || ']' from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-3 - u.code) / 2 and s.item >= 0)
  when (-u.code - 10000) % 200001 >= 100000 then (select s.output from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-u.code - 10000) / 200001 and s.item >= 0 and s.state = 'completed'
    order by s.item offset (-u.code - 10000) % 200001 - 100000 limit 1)
  else (select s.output from composer.tasks s
    where s.namespace = $1 and s.run_id = u.run_id and s.node = (-u.code - 10000) / 200001 and s.item >= 0 and s.state = 'completed'
    order by s.item desc offset 99999 - (-u.code - 10000) % 200001 limit 1)
end
