"""The API's routes, a module for each resource; they call the ledger and contain no rules of their own."""
