"""`pgbouncer sync`, and the pause of a pool around a switch."""
