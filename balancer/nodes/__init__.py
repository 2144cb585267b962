"""All SQL there is: connections to nodes, our schema on them, partitions, measurements and samples.

The only package that speaks to PostgreSQL. It takes and gives plain values (names, encoded bounds, epochs) and knows
nothing of the directory: what belongs where is decided above.
"""
