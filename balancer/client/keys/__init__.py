"""Where a key is, fast: routes from the directory, lookups by integer or text, ids, and hints about statements that
seem to miss their key. Called by the routers and by `client/transaction`; knows no connection.

Following the directory: `routes` → `directory/open` → `directory/store/backend`.
"""
