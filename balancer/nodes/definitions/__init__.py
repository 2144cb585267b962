"""A table's definition as statements: made elsewhere, or carried to another name."""
