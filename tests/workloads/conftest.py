"""Two nodes on different versions of the server."""

from tests.migration.conftest import pair as pair
