CREATE OR REPLACE FUNCTION balancer.transaction_id(secret text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN left(encode(sha256(convert_to(secret, 'UTF8')), 'hex'), 40);

-- The last statement of a home.
CREATE OR REPLACE PROCEDURE balancer.decide(secret text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF now() < clock_timestamp() - interval '1 hour' THEN
        RAISE EXCEPTION 'a transaction over several nodes must end within an hour' USING ERRCODE = '40001';
    END IF;
    -- The decision must survive a crash, whatever the application has chosen for itself.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    INSERT INTO balancer.decision (id, commits) VALUES (balancer.transaction_id(secret), true);
END $$;

-- For a client whose answer was lost: in a transaction of its own, before it asks.
CREATE OR REPLACE PROCEDURE balancer.abandon(secret text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    INSERT INTO balancer.decision (id, commits, reason)
    VALUES (balancer.transaction_id(secret), false, 'its client lost the connection') ON CONFLICT DO NOTHING;
END $$;

-- Silence means that it was committed.
CREATE OR REPLACE PROCEDURE balancer.committed(secret text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM balancer.decision d WHERE d.id = balancer.transaction_id(secret) AND d.commits) THEN
        RAISE EXCEPTION 'the transaction was given up' USING ERRCODE = '40001';
    END IF;
END $$;

-- Every part has said that it is committed.
CREATE OR REPLACE PROCEDURE balancer.forget(secrets text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM balancer.decision d USING unnest(secrets) AS s (secret)
    WHERE d.id = balancer.transaction_id(s.secret) AND d.commits;
END $$;
