"""Keys, hashes, leaves: which values of a key are where. The client's distribution has this room, so nothing here needs
more than the standard library, but for `hashing_columns` (numpy), which is imported late.
"""
