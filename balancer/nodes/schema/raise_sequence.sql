-- Lets a sequence give out nothing up to a value. Where it stands is read from itself: one that was restarted and
-- not used since is not where it began.
CREATE OR REPLACE FUNCTION balancer.raise_sequence(name text, value bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sequence regclass := to_regclass(name);
    shape pg_sequence;
    base numeric;
    steps numeric;
BEGIN
    SELECT * INTO shape FROM pg_sequence WHERE seqrelid = sequence;
    IF NOT found THEN
        RETURN;
    END IF;
    EXECUTE format('SELECT last_value - CASE WHEN is_called THEN 0 ELSE %s::numeric END FROM %s',
                   shape.seqincrement, sequence) INTO base;
    steps := floor((value - base) / shape.seqincrement);
    IF steps > 0 THEN
        base := base + steps * shape.seqincrement;
        PERFORM setval(sequence, least(greatest(base, shape.seqmin), shape.seqmax)::bigint);
    END IF;
END $$;
REVOKE ALL ON FUNCTION balancer.raise_sequence(text, bigint) FROM PUBLIC;
