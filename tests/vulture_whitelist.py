"""Definitions that vulture takes for dead and that are not, each with its reason.

`make lint` reads this file beside the source. An entry says who uses the definition; one that nothing uses is
deleted from the source instead. Tests do not count as use: what only tests need stands in the last section.
"""

_ = object()

# ---- called by name or by a framework ----------------------------------------------------------------------
_.trigger_rule  # Airflow reads it from the task.
_.operator_extra_links, _.ui_color, _.execute_complete, _.on_kill, _.poke  # Airflow: operators and sensors.
_.cleanup  # Airflow: triggers.
_.get_link, ti_key  # Airflow: links of operators.
_.get_weight, _.deserialize  # Airflow: weight rules and retry policies.
_.fastapi_apps, _.fastapi_root_middlewares, _.listeners, _.priority_weight_strategies  # Airflow: the plugin
EmepDBManager  # Airflow: [database] external_db_managers names it.
_.version_table_name, _.migration_dir, _.alembic_file, _.supports_table_dropping  # Airflow: its attributes.
_.revision_heads_map  # The same.
previous_state, msg  # Airflow: parameters that pluggy passes by name.
CONNECT_ARGUMENTS  # emep.demo.environment names it in a setting of Airflow's.
_.route_class  # FastAPI reads it from the router.
_.model_config, _._storable  # pydantic: settings and validators of a model.
_.type_annotation_map  # SQLAlchemy: types of columns by their annotations.
_.auth_flow, _.requires_response_body  # httpx: authentication.
_.__signature__  # inspect.signature reads it, and so does Airflow.
exclude_unset  # A parameter of pydantic's model_dump, named by a Protocol.
_.redirect_request  # urllib: refuses redirects.
_.ignore_aliases, deep  # PyYAML: dumpers and constructors.
_.permitted, _.inheritable  # The kernel reads them from the structure.
_.tempdir  # The module tempfile reads it.
_.progress_bars  # Great Expectations reads it.
_._B, _._D  # The CMA class of the package cmaes reads them.
_.pre_tokenizer  # tokenizers: a property that writes into the tokenizer.
_._message  # engines.supervisor.run calls its events by name.
merge_linear, merge_ties  # Targets that the methods' descriptions name.

# ---- written for people and other programs -----------------------------------------------------------------
_.schema_version  # A field of SPEC documents; their JSON Schema checks it.
_.registered_at, _.yield_at, _.node_rank, _.billed_gpu_seconds  # Columns, for reports in SQL.
_.lease_seconds  # Fields of documents that the API answers with, from here on.
_.memory_total, _.set_by_operator
_.policy_weight, _.gpu_hours, _.used_gpu_hours, _.target_gpu_hours, _.overall_rank
_.half_life_seconds, _.policy_digest

# ---- contracts that a site's own engine may use; the conformance suites hold every implementation to them --
_.put_file, _.put_folder  # ArtifactStore.
_.generate  # InferenceBackend.

# ---- needed by tests alone ---------------------------------------------------------------------------------
build_snapshot  # The plain way to the snapshot, which the snapshot cache is compared with.
_.full_reads  # How often the snapshot cache read everything: its tests bound that.
_.from_state  # Shows that the state a search writes down is all of it.
_.search_tasks  # The demo's task files, by which tests measure that a search helps.
