/*
The part of our schema that says why a key was not changed through `balancer_all`.
*/

CREATE OR REPLACE FUNCTION balancer.refuse_rekey() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stays boolean;
BEGIN
    EXECUTE format('SELECT %s FROM (SELECT ($1).*) AS new', pg_get_partition_constraintdef(TG_RELID))
        INTO stays USING NEW;
    IF stays IS NOT TRUE THEN
        RAISE EXCEPTION 'a row of %.% cannot get a key of another tablet through balancer_all: use router.rekey',
            quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
            USING ERRCODE = 'TB008', HINT = 'It moves the rows of a key, colocated ones too, all or nothing.';
    END IF;
    RETURN NEW;
END $$;
