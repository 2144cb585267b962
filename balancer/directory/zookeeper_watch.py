"""The signal behind a follower: the watch on the root, and every change of the connection's state.

Watches are not registered again after a reconnect; but a reconnect is a change of state, which wakes the follower, and
its next read of the root sets the watch again. kazoo's thread only ever sets the event.
"""

import threading

from balancer.directory.zookeeper_session import Session


class RootSignal:
    """See `watch.Signal`. The directory sets the root's watch whenever it reads the root and anybody listens."""

    def __init__(self, session: Session, listeners: "list[RootSignal]") -> None:
        self._session = session
        self._listeners = listeners
        self._event = threading.Event()
        session.add_waker(self.wake)

    def wait(self, timeout: float) -> None:
        """Returns when the root may have changed since the last call."""
        self._event.wait(timeout)
        self._event.clear()

    def wake(self) -> None:
        """Makes a waiter return at once."""
        self._event.set()

    def close(self) -> None:
        """Stops listening."""
        self._session.remove_waker(self.wake)
        if self in self._listeners:
            self._listeners.remove(self)
