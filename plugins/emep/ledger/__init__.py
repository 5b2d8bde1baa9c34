"""The ledger.

Jobs, nodes and allocations in Airflow's database, and the scheduler service around the pure core.
"""
