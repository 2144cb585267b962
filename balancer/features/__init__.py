"""One folder per thing a user can name; nobody below imports it."""
