"""The node agent: reports this node's GPUs, takes orders from the API, starts and watches the engines.

It imports neither Airflow nor the engines: an engine runs as a process group of its own and
outlives the agent.
"""
