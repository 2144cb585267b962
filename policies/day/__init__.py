"""Profile of the day."""
