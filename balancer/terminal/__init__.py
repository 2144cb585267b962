"""What commands have in common: how they print (`output`, `live`), find the directory (`options`), and give an order to
the leader and wait for its answer (`operate`). Called by `cli` and by each feature's `command`.
"""
