"""EMEP: shares GPUs for Airflow tasks that merge, evolve and evaluate language models.

Its rooms are the scheduling core, the ledger in Airflow's database, the API, the node agent, and Airflow's
operators, triggers and sensors.
"""
