-- The first schema. Everything lives in one schema; every statement names it. No extension is used.
-- `namespace` (the tenant) is in every key; where a run id is in the key too, that comes first: with a plan made on empty
-- tables, two indexes that begin with the same column look equally good, and the wrong one reads the whole table.
-- Payloads are text, not jsonb: key order, big numbers and \u0000 survive.

create table composer.plans (
  namespace    text        not null,
  id           int         generated always as identity,
  workflow     text        not null,
  shape        text        not null,
  options_hash text        not null,
  body         text        not null,
  about        text        not null default '{}',
  created_at   timestamptz not null default now(),
  primary key (namespace, id),
  unique (namespace, workflow, shape, options_hash)
);

create table composer.workflows (
  namespace  text        not null,
  name       text        not null,
  plan       int         not null,
  updated_at timestamptz not null default now(),
  primary key (namespace, name),
  foreign key (namespace, plan) references composer.plans (namespace, id)
);

-- One row a run. It is rewritten at every transition, so payloads do not live in it: they are in its task row -1.
create table composer.runs (
  namespace   text        not null,
  id          uuid        not null,
  workflow    text        not null,
  plan        int         not null,
  status      text        not null,
  version     int         not null,
  letters     text        not null,
  counters    text        not null default '',
  priority    smallint    not null default 0,
  tags        text        not null default '{}',
  quarantine  text,
  starts_at   timestamptz,
  deadline_at timestamptz,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  finished_at timestamptz,
  primary key (id, namespace),
  constraint runs_status check (status in ('scheduled', 'running', 'compensating', 'completed', 'failed', 'cancelled')),
  constraint runs_finished check ((status in ('completed', 'failed', 'cancelled')) = (finished_at is not null)),
  constraint runs_scheduled check (status <> 'scheduled' or starts_at is not null),
  constraint runs_version check (version >= 1)
) with (fillfactor = 70);
-- Not by status: whoever looks for scheduled or running runs by time would get this index for it, and sort all open runs.
create index runs_open on composer.runs (created_at, id, namespace) where finished_at is null;
create index runs_deadline on composer.runs (deadline_at) where status = 'running' and deadline_at is not null;
create index runs_starts on composer.runs (starts_at) where status = 'scheduled';
-- For lists. HOT updates stay: a transition that leaves the status as it is touches no indexed column, and one that changes it
-- could not be HOT anyway, since predicates above name the status too.
-- An expression, so that nobody but a list gets them: for timers they would be as good as any, and sort all open runs.
create index runs_status on composer.runs ((status || ''), namespace, id);
create index runs_workflow on composer.runs (workflow, namespace, (status || ''), id);

-- One row a task: a node's work in a run, or an item of a map (item >= 0). Node -1 is the run: its input, output, error.
create table composer.tasks (
  namespace        text        not null,
  run_id           uuid        not null,
  node             int         not null,
  item             int         not null default -1,
  step             text        not null default '',
  queue            text        not null default '',
  priority         smallint    not null default 0,
  reads            int[],
  state            text        not null,
  attempt          int         not null default 1,
  delivery         int         not null default 0,
  failures         int         not null default 0,
  crashes          int         not null default 0,
  lease_seconds    float8,
  lease_owner      text,
  lease_expires_at timestamptz,
  wake_at          timestamptz,
  input            text,
  output           text,
  error            text,
  details          text,
  created_at       timestamptz not null default now(),
  started_at       timestamptz,
  finished_at      timestamptz,
  primary key (run_id, node, item, namespace),
  constraint tasks_state check (state in ('held', 'ready', 'leased', 'delayed', 'waiting', 'completed', 'failed', 'withdrawn', 'cancelled')),
  constraint tasks_lease check ((state = 'leased') = (lease_owner is not null) and (lease_owner is null) = (lease_expires_at is null)),
  constraint tasks_wake check (state <> 'delayed' or wake_at is not null),
  constraint tasks_numbers check (attempt >= 0 and delivery >= 0 and failures >= 0 and crashes >= 0),
  constraint tasks_priority check (priority between -100 and 100)
) with (fillfactor = 70);
create index tasks_leases on composer.tasks (lease_expires_at) where state = 'leased';
create index tasks_wakes on composer.tasks (wake_at) where state = 'delayed';
create index tasks_waits on composer.tasks (wake_at) where state = 'waiting' and wake_at is not null;

-- How far a map is. Its items' results are added here, without a decision a batch; `total` = completed + failed + withdrawn
-- when it has ended. `active` counts stored items that are neither held nor settled.
create table composer.maps (
  namespace    text not null,
  run_id       uuid not null,
  node         int  not null,
  total        int  not null default 0,
  expanded     int  not null default 0,
  completed    int  not null default 0,
  failed       int  not null default 0,
  withdrawn    int  not null default 0,
  held         int  not null default 0,
  active       int  not null default 0,
  most_active  int,
  next_held    int  not null default 0,
  tolerance    int  not null default 0,
  first_failed int  not null default -1,
  error        text,
  retries      int  not null default 0,
  digest       text not null default '',
  afresh       bool not null default false,
  primary key (run_id, node, namespace)
) with (fillfactor = 50);

-- Events sent to runs from outside. One that no node waits for yet has no `node`.
create table composer.signals (
  namespace  text        not null,
  run_id     uuid        not null,
  id         bigint      generated always as identity,
  name       text        not null,
  payload    text        not null,
  dedupe     text,
  node       int,
  created_at timestamptz not null default clock_timestamp(),
  primary key (run_id, id, namespace)
);

-- What a transition changed. Append-only and the bulk of the data, hence the only partitioned table: months of run ids.
create table composer.history (
  namespace text        not null,
  run_id    uuid        not null,
  version   int         not null,
  at        timestamptz not null default clock_timestamp(),
  changes   text        not null,
  primary key (run_id, version, namespace)
) partition by range (run_id);
create table composer.history_default partition of composer.history default;

-- Idempotency has a table of its own: a key precedes its run's row and may outlive it.
create table composer.run_keys (
  namespace    text        not null,
  workflow     text        not null,
  key          text        not null,
  run_id       uuid        not null,
  input_digest text        not null,
  created_at   timestamptz not null default now(),
  expires_at   timestamptz,
  primary key (namespace, workflow, key)
);

-- Tasks that can be handed out now. Small and hot; what is due later is a wake time on its task.
create table composer.outbox (
  namespace    text     not null,
  queue        text     not null,
  priority     smallint not null,
  id           bigint   generated always as identity,
  run_id       uuid     not null,
  node         int      not null,
  item         int      not null,
  step         text     not null,
  published_at timestamptz,
  primary key (id, namespace)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000
);
create index outbox_pop on composer.outbox (queue, namespace, priority desc, id);
create index outbox_plain on composer.outbox (queue, namespace, priority desc, id) where item < 0;
create index outbox_task on composer.outbox (run_id, node, item, namespace);

-- Worker incarnations: who is alive, where, and what they serve.
create table composer.workers (
  namespace  text        not null,
  id         text        not null,
  host       text        not null,
  boot_id    text        not null,
  pid        int         not null,
  started_at float8      not null,
  queues     text[]      not null,
  steps      text[]      not null,
  seen_at    timestamptz not null default now(),
  expires_at timestamptz not null,
  primary key (namespace, id)
);

-- Processes that sleep until they are notified. While there is none, no commit pays for a NOTIFY.
create table composer.sleepers (
  namespace  text        not null,
  id         text        not null,
  expires_at timestamptz not null,
  primary key (namespace, id)
);
