/*
The part of our schema that concerns nodes that go back in time.

`refuse_closed` is the body of the fence on a rewound node's tablets. Unlike `refuse_write` it does not ask for a retry:
only an operator can end it. Its arguments are those of every fence.
*/

CREATE OR REPLACE FUNCTION balancer.refuse_closed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'tablet % is closed: node % has gone back in time, and writes that it acknowledged are missing',
        TG_ARGV[4], TG_ARGV[5]
        USING ERRCODE = 'TB004', HINT = format('An operator decides: balancer node rejoin %s', TG_ARGV[5]);
END $$;
REVOKE ALL ON FUNCTION balancer.refuse_closed() FROM PUBLIC;
