/*
The part of our schema that reference tables need. `reference_copies` uses it.
*/

-- On the copies of a reference table. Its arguments are the tablet, the home and the home's epoch.
CREATE OR REPLACE FUNCTION balancer.refuse_copy_write() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%.% is a copy here: it is written on its home, node %', TG_TABLE_SCHEMA, TG_TABLE_NAME,
        TG_ARGV[1]
        USING ERRCODE = '40001', DETAIL = format('TB002 node=%s epoch=%s', TG_ARGV[1], TG_ARGV[2]),
              HINT = 'Run the transaction again on the home.';
END $$;
REVOKE ALL ON FUNCTION balancer.refuse_copy_write() FROM PUBLIC;

-- On the home. Its arguments are the columns that foreign keys point to. With the writer's rights: a row as JSON
-- may call a cast of the table's owner.
CREATE OR REPLACE FUNCTION balancer.refuse_home_write() RETURNS trigger
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'TRUNCATE of %.% would not reach its copies', TG_TABLE_SCHEMA, TG_TABLE_NAME
            USING ERRCODE = '0A000', HINT = 'Delete its rows.';
    END IF;
    IF coalesce(current_setting('balancer.unreferenced', true), '') = 'yes' THEN
        RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    IF TG_OP = 'UPDATE' AND NOT EXISTS (SELECT FROM unnest(TG_ARGV) AS c
            WHERE to_jsonb(OLD) -> c IS DISTINCT FROM to_jsonb(NEW) -> c) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'rows of other nodes may refer to this row of %.%', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = '23503', HINT = 'Where you know that none does: SET LOCAL balancer.unreferenced = ''yes''.';
END $$;
REVOKE ALL ON FUNCTION balancer.refuse_home_write() FROM PUBLIC;
