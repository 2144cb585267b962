"""Definitions as PostgreSQL prints them, without their beginning: a twin has another name, or another table.

Fragments of queries on the catalog, for `shape`, `definition` and `root_facts`.
"""

from psycopg import sql

# A name may contain anything, even text that looks like a definition. So nothing is searched for in a definition: it
# begins with parts of the catalog, assembled as PostgreSQL assembles them, or it is not understood.
INDEX_TAIL = sql.SQL("""
    (SELECT CASE WHEN starts_with(text, head) THEN substr(text, length(head) + 1) END
     FROM pg_class xc JOIN pg_class xt ON xt.oid = i.indrelid JOIN pg_namespace xn ON xn.oid = xt.relnamespace
     CROSS JOIN LATERAL (SELECT pg_get_indexdef(i.indexrelid) AS text,
         format('CREATE %%sINDEX %%I ON %%s%%I.%%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' END, xc.relname,
                CASE WHEN xc.relkind = 'I' THEN 'ONLY ' END, xn.nspname, xt.relname) AS head)
         AS printed
     WHERE xc.oid = i.indexrelid)
""")
"""Of `pg_index i`: what its definition says after the table's name."""

TRIGGER_EVENTS = sql.SQL("""
    concat(
        CASE WHEN g.tgtype & 2 <> 0 THEN 'BEFORE' WHEN g.tgtype & 64 <> 0 THEN 'INSTEAD OF' ELSE 'AFTER' END, ' ',
        concat_ws(' OR ', CASE WHEN g.tgtype & 4 <> 0 THEN 'INSERT' END, CASE WHEN g.tgtype & 8 <> 0 THEN 'DELETE' END,
            CASE WHEN g.tgtype & 16 <> 0 THEN 'UPDATE' || coalesce((
                SELECT ' OF ' || string_agg(quote_ident(xa.attname), ', ' ORDER BY xo.place)
                FROM unnest(g.tgattr::int2[]) WITH ORDINALITY AS xo (attnum, place)
                JOIN pg_attribute xa ON xa.attrelid = g.tgrelid AND xa.attnum = xo.attnum), '') END,
            CASE WHEN g.tgtype & 32 <> 0 THEN 'TRUNCATE' END))
""")
"""Of `pg_trigger g`: `BEFORE INSERT OR UPDATE OF "a"`, as its definition has it."""

TRIGGER_TAIL = sql.SQL("""
    (SELECT CASE WHEN starts_with(text, head) THEN substr(text, length(head) + 1) END
     FROM pg_class xt JOIN pg_namespace xn ON xn.oid = xt.relnamespace
     CROSS JOIN LATERAL (SELECT pg_get_triggerdef(g.oid) AS text,
         format('CREATE %%sTRIGGER %%I %%s ON %%I.%%I ', CASE WHEN g.tgconstraint <> 0 THEN 'CONSTRAINT ' END, g.tgname,
                {}, xn.nspname, xt.relname) AS head) AS printed
     WHERE xt.oid = g.tgrelid)
""").format(TRIGGER_EVENTS)
"""Of `pg_trigger g`: what its definition says after the table's name."""
