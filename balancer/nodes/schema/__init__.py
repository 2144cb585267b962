"""Everything we install on a node, versioned as one: *.sql + install/upgrade; the leader's transaction; proof of
ownership."""
