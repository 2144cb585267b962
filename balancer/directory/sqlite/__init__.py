"""The directory in a file, for one machine: `backend`, and leaders by a lock (`election`). Opened by `directory/open`
only.
"""
