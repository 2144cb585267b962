"""All the SQL: connections to nodes, our schema on them, partitions, measurements and samples.

The only package that talks to PostgreSQL. It takes and returns plain values (names, encoded bounds, epochs) and knows
nothing about the directory: layers above decide what belongs where.
"""
