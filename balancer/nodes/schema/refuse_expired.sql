/*
The part of our schema that refuses writes to keys that have expired.
*/

-- On partitions whose keys have expired; its argument is the sentence. Not 40001: another try does not cure it.
CREATE OR REPLACE FUNCTION balancer.refuse_expired() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'TB007';
END $$;
REVOKE ALL ON FUNCTION balancer.refuse_expired() FROM PUBLIC;
