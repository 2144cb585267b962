"""PostgreSQL, one node at a time: sessions, our schema, what a table is, partitions. Takes and returns plain values
(names, encoded bounds, epochs) and knows nothing about the directory: layers above decide what belongs where.

`definitions` > `tablets` > `catalog`, `schema` > `session`: each may import only those to its right.
"""
