"""The part of our schema that concerns nodes that go back in time, as a step that `schema.py` installs.

`node.mark` is raised by the leader about once a minute: a node that has forgotten it has forgotten what came after it.
`refuse_closed` is the body of the fence on a rewound node's tablets. Unlike `refuse_write` it does not ask for another
try: only an operator can end it. Its arguments are those of every fence.
"""

STEP = """
    ALTER TABLE balancer.node ADD COLUMN IF NOT EXISTS mark bigint NOT NULL DEFAULT 0;
    COMMENT ON COLUMN balancer.node.mark IS 'Seconds since 1970: what was acknowledged before is here';

    CREATE OR REPLACE FUNCTION balancer.refuse_closed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        RAISE EXCEPTION 'tablet % is closed: node % has gone back in time, and writes that it acknowledged are missing',
            TG_ARGV[4], TG_ARGV[5]
            USING ERRCODE = 'TB004', HINT = format('An operator decides: balancer node rejoin %s', TG_ARGV[5]);
    END $$;
    REVOKE ALL ON FUNCTION balancer.refuse_closed() FROM PUBLIC;
"""
