"""`ddl apply|status`."""
