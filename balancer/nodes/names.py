"""Names on a node, for everything that talks to one; the client library imports them from `balancer.relation_names`."""

from balancer.relation_names import MAX_BYTES as MAX_BYTES
from balancer.relation_names import SCHEMA as SCHEMA
from balancer.relation_names import Name as Name
from balancer.relation_names import parse_name as parse_name
from balancer.relation_names import partition_name as partition_name
