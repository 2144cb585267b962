"""A table's definition as statements: made on another node (`root`), or carried to another name (`name_transfer`,
`dependents`). Fragments that both need are in `table_parts`. Called by features that make or rename tables.
"""
