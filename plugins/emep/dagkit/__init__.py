"""What the DAG files share: typed Params, the engines' inputs, tasks and generation groups."""
