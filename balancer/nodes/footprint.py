"""Whether anything that a swap has read about tables has changed since: one query, run before and under the locks.

Reading everything again under the locks would take longer than the swap itself. Changing a row of the catalog makes a
new row with another `xmin`, so a digest of the rows that were read shows it; of `pg_class`, which VACUUM and ANALYZE
write to as well, those columns count that DDL changes. Only reads.
"""

from collections.abc import Sequence

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name

_DIGEST = """
WITH base AS MATERIALIZED (
    SELECT c.oid, c.reltype FROM unnest(%s::text[]) AS n (name) JOIN pg_class c ON c.oid = to_regclass(n.name)
), row_type AS (
    SELECT t.oid FROM pg_type t JOIN base b ON t.oid = b.reltype OR t.typelem = b.reltype AND b.reltype <> 0
), dependent AS MATERIALIZED (
    SELECT d.classid, d.objid, d.objsubid, d.refobjsubid, d.deptype FROM pg_depend d
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid IN (SELECT oid FROM base)
       OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (SELECT oid FROM row_type)
), relation AS MATERIALIZED (
    SELECT oid FROM base
    UNION SELECT objid FROM dependent WHERE classid = 'pg_class'::regclass
    UNION SELECT r.ev_class FROM pg_rewrite r JOIN dependent d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    UNION SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM base)
), described AS MATERIALIZED (
    SELECT oid FROM relation
    UNION SELECT oid FROM pg_constraint WHERE conrelid IN (SELECT oid FROM base)
    UNION SELECT objid FROM dependent
), fact (text) AS (
    SELECT format('depends %%s %%s %%s %%s %%s', classid, objid, objsubid, refobjsubid, deptype) FROM dependent
    UNION ALL SELECT concat_ws(' ', 'relation', c.oid, c.relname, c.relnamespace, c.relowner, c.relacl,
                            c.reloptions, c.relkind, c.relreplident, c.relrowsecurity, c.relforcerowsecurity)
        FROM pg_class c JOIN relation USING (oid)
    UNION ALL SELECT format('column %%s %%s %%s', attrelid, attnum, xmin) FROM pg_attribute
        WHERE attrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('default %%s %%s', oid, xmin) FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('constraint %%s %%s', oid, xmin) FROM pg_constraint
        WHERE conrelid IN (SELECT oid FROM base) OR confrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('index %%s %%s', indexrelid, xmin) FROM pg_index
        WHERE indrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT format('trigger %%s %%s', oid, xmin) FROM pg_trigger
        WHERE tgrelid IN (SELECT oid FROM base) AND NOT tgisinternal
    UNION ALL SELECT format('policy %%s %%s', oid, xmin) FROM pg_policy
        WHERE polrelid IN (SELECT oid FROM base) OR oid IN (SELECT objid FROM dependent)
    UNION ALL SELECT format('rule %%s %%s', oid, xmin) FROM pg_rewrite
        WHERE ev_class IN (SELECT oid FROM relation) OR oid IN (SELECT objid FROM dependent)
    UNION ALL SELECT format('function %%s %%s', oid, xmin) FROM pg_proc
        WHERE oid IN (SELECT objid FROM dependent WHERE classid = 'pg_proc'::regclass)
    UNION ALL SELECT format('statistics %%s %%s', oid, xmin) FROM pg_statistic_ext
        WHERE stxrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('sequence %%s %%s', seqrelid, xmin) FROM pg_sequence
        WHERE seqrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT format('published %%s %%s', oid, xmin) FROM pg_publication_rel
        WHERE prrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('publication %%s %%s', oid, xmin) FROM pg_publication
    UNION ALL SELECT format('publication of schema %%s %%s', oid, xmin) FROM pg_publication_namespace
    UNION ALL SELECT format('inherits %%s %%s %%s', inhrelid, inhparent, xmin) FROM pg_inherits
        WHERE inhrelid IN (SELECT oid FROM base) OR inhparent IN (SELECT oid FROM base)
    UNION ALL SELECT format('subscription %%s %%s', srsubid, srrelid) FROM pg_subscription_rel
        WHERE srrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('comment %%s %%s %%s', objoid, objsubid, xmin) FROM pg_description
        WHERE objoid IN (SELECT oid FROM described)
)
SELECT md5(string_agg(text, E'\\n' ORDER BY text)) FROM fact
"""


def footprint(cursor: Cursor, tables: Sequence[Name]) -> str:
    """A digest of everything in the catalog that describes these tables or refers to them."""
    row = cursor.execute(_DIGEST, ([str(table) for table in tables],)).fetchone()
    assert row is not None
    return str(row[0])
