"""The consistency checker: what it looks at, kind by kind, and the loop that goes over it.

`features/checker/loop` asks `policies.checking` what is next, calls the kind that `features/checker/loop` names, and
keeps the book. The daemon's leader runs it within the bundle's `[checks]`; `balancer verify` runs it for a person. Only
reads."""
