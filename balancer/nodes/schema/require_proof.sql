CREATE OR REPLACE FUNCTION balancer.require_proof() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(pg_catalog.current_setting('balancer.held', true), '') <> 'yes'
        AND pg_catalog.pg_trigger_depth() < 2
    THEN
        RAISE EXCEPTION '%.% takes writes only from transactions that have called balancer.hold',
            pg_catalog.quote_ident(TG_TABLE_SCHEMA), pg_catalog.quote_ident(TG_TABLE_NAME)
            USING ERRCODE = 'TB005',
                  HINT = 'First in the transaction: CALL balancer.hold(tablet, epoch, true); the library does.';
    END IF;
    RETURN NULL;
END $$;
