"""The plain tables of a database, as far as a proposal for sharding them needs. Only reads."""

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name
from balancer.policies.keys import KeyType
from balancer.policies.proposal import ForeignKey, TableFacts

_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, pg_total_relation_size(c.oid)::bigint,
       ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, NULL)]
             FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
               AND format_type(a.atttypid, NULL) = ANY(%s) AND l.collisdeterministic IS NOT FALSE
             ORDER BY a.attnum),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
               AND (i.indisprimary AND c.relreplident = 'd' OR i.indisreplident AND c.relreplident = 'i'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition AND n.nspname !~ '^(pg_|balancer)'
  AND n.nspname <> 'information_schema'
  AND NOT EXISTS (SELECT FROM pg_depend d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY n.nspname, c.relname
"""
_UNIQUE = """
SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
             WHERE u.place <= i.indnkeyatts ORDER BY u.place)
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid ORDER BY i.indisprimary DESC, i.indexrelid
"""
_FOREIGN_KEYS = """
SELECT k.conname, n.nspname, t.relname, array_agg(fa.attname::text ORDER BY u.place),
       array_agg(ta.attname::text ORDER BY u.place)
FROM pg_constraint k JOIN pg_class t ON t.oid = k.confrelid JOIN pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS u (mine, theirs, place)
JOIN pg_attribute fa ON fa.attrelid = k.conrelid AND fa.attnum = u.mine
JOIN pg_attribute ta ON ta.attrelid = k.confrelid AND ta.attnum = u.theirs
WHERE k.conrelid = %s AND k.contype = 'f' GROUP BY k.oid, 1, 2, 3 ORDER BY 1
"""


def read_tables(cursor: Cursor) -> list[TableFacts]:
    """All of them, by name; those of extensions and ours are left out."""
    found = []
    kinds = [str(kind) for kind in KeyType]
    for oid, schema, name, size, columns, identified in cursor.execute(_TABLES, (kinds,)).fetchall():
        keys = cursor.execute(_FOREIGN_KEYS, (oid,)).fetchall()
        unique = cursor.execute(_UNIQUE, (oid,)).fetchall()
        found.append(
            TableFacts(
                str(Name(schema, name)),
                size,
                tuple((column, kind) for column, kind in columns),
                tuple(tuple(row[0]) for row in unique),
                tuple(
                    ForeignKey(key, tuple(mine), str(Name(to_schema, to)), tuple(theirs))
                    for key, to_schema, to, mine, theirs in keys
                ),
                identified,
            )
        )
    return found
