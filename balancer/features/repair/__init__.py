"""Doctor, recover, lost tablets."""
