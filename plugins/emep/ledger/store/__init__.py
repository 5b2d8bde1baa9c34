"""Tables, transactions and reading: how the ledger keeps its rows, and how rows look to others."""
