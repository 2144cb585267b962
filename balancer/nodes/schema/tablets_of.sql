-- The tablets that partitions belong to, in the order in which they are locked.
CREATE OR REPLACE FUNCTION balancer.tablets_of(schemas text[], partitions text[]) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.id FROM balancer.tablet t
    WHERE t.partitions && $2 AND EXISTS (
        SELECT FROM unnest(t.schemas, t.partitions) AS mine (schema, name)
        JOIN unnest($1, $2) AS given (schema, name) USING (schema, name))
    ORDER BY t.id
$$;
