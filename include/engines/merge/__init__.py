"""MergeEngine: recipes (``recipe``), ``methods``, plans (``plan``), and ``run``, which carries a plan out."""
