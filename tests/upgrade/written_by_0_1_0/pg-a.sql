--
-- PostgreSQL database dump
--

\restrict duZVeh5YiIBucSDmz8clHkjo3bp1DOT5AifZee73qMc22LuSuEmayb6tSyKo3hK

-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: balancer; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA balancer;


--
-- Name: enter(bigint, text); Type: FUNCTION; Schema: balancer; Owner: -
--

CREATE FUNCTION balancer.enter(mine bigint, expected_node text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    DECLARE
        seen balancer.node;
    BEGIN
        SELECT * INTO seen FROM balancer.node;
        IF expected_node <> '' AND seen.node <> expected_node THEN
            RAISE EXCEPTION 'this database is node %, not node %', seen.node, expected_node USING ERRCODE = 'TB003';
        END IF;
        IF seen.leader_epoch < mine THEN
            PERFORM pg_advisory_xact_lock(1952539244, 0);
            UPDATE balancer.node SET leader_epoch = mine WHERE leader_epoch < mine;
        END IF;
        SELECT * INTO seen FROM balancer.node FOR SHARE;
        RETURN seen.leader_epoch;
    END $$;


--
-- Name: fenced_now(regclass); Type: FUNCTION; Schema: balancer; Owner: -
--

CREATE FUNCTION balancer.fenced_now(leaf regclass) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    BEGIN
        PERFORM pg_get_object_address('trigger', parse_ident(leaf::text) || '!balancer_fence'::text, '{}');
        RETURN true;
    EXCEPTION WHEN undefined_object THEN
        RETURN false;
    END $$;


--
-- Name: hold(bigint, bigint, boolean); Type: PROCEDURE; Schema: balancer; Owner: -
--

CREATE PROCEDURE balancer.hold(IN wanted bigint, IN known_epoch bigint, IN writing boolean)
    LANGUAGE plpgsql
    AS $$
    DECLARE
        unchanged boolean;
    BEGIN
        IF pg_try_advisory_xact_lock_shared(wanted + CASE
                WHEN writing OR current_setting('transaction_isolation') LIKE 'read%' THEN 8385983981140574208
                ELSE 8386124718628929536 END) THEN
            -- After the lock, and in READ COMMITTED by a snapshot of its own.
            SELECT t.state = 'owned' AND t.epoch = known_epoch AND t.until IS NULL AND t.xmax = 0
                AND NOT pg_is_in_recovery()
            INTO unchanged FROM balancer.tablet t WHERE t.id = wanted;
            IF unchanged THEN
                RETURN;
            END IF;
        END IF;
        PERFORM balancer.hold_slowly(wanted, known_epoch, writing);
    END $$;


--
-- Name: hold_slowly(bigint, bigint, boolean); Type: FUNCTION; Schema: balancer; Owner: -
--

CREATE FUNCTION balancer.hold_slowly(wanted bigint, known_epoch bigint, writing boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '1s'
    AS $$
    DECLARE
        one_snapshot boolean := current_setting('transaction_isolation') NOT LIKE 'read%';
        exclusive boolean := writing OR NOT one_snapshot;
        mine record;
        locked boolean := false;
        leaf regclass;
        root regclass;
        held regclass[] := '{}';
        roots text := '';
        leaves text := '';
        until text;
    BEGIN
        SELECT state, epoch, schemas, partitions INTO mine FROM balancer.tablet WHERE id = wanted;
        -- One that is not here, by the caller's own map, is not waited for.
        IF mine.state IN ('owned', 'fenced') AND mine.epoch = known_epoch THEN
            PERFORM pg_advisory_xact_lock_shared(
                wanted + CASE WHEN exclusive THEN 8385983981140574208 ELSE 8386124718628929536 END);
            FOR i IN 1 .. cardinality(mine.partitions) LOOP
                leaf := to_regclass(format('%I.%I', mine.schemas[i], mine.partitions[i]));
                root := pg_partition_root(leaf);
                IF root IS NULL OR root = leaf THEN
                    RAISE EXCEPTION 'tablet % is not attached here', wanted USING ERRCODE = 'TB002';
                END IF;
                held := held || leaf;
                roots := roots || ', ONLY ' || root::text;
                leaves := leaves || ', ONLY ' || leaf::text;
            END LOOP;
            EXECUTE 'LOCK TABLE ' || substr(roots || leaves, 3)
                || CASE WHEN exclusive THEN ' IN ROW EXCLUSIVE MODE' ELSE ' IN ACCESS SHARE MODE' END;
            locked := true;
        END IF;

        SELECT t.epoch, t.state, t.migration, t.moved_to, encode(f.tgargs, 'escape') AS fence INTO mine
        FROM balancer.tablet t LEFT JOIN pg_trigger f
            ON f.tgrelid = held[1] AND f.tgname = '!balancer_fence' AND f.tgenabled <> 'D'
        WHERE t.id = wanted;
        IF mine.state = 'incoming' THEN
            RAISE EXCEPTION 'tablet % is arriving here, try again', wanted
                USING ERRCODE = 'TB001', DETAIL = format('migration=%s', mine.migration);
        END IF;
        until := split_part(mine.fence, '\000', 3);
        IF mine.state IS NULL OR mine.state = 'moved' OR mine.epoch <> known_epoch OR until = 'moved' THEN
            RAISE EXCEPTION 'tablet % is not here with epoch %', wanted, known_epoch
                USING ERRCODE = 'TB002', DETAIL = format('node=%s epoch=%s', mine.moved_to, mine.epoch);
        END IF;
        -- Not locked: it has arrived between the two looks.
        IF NOT locked OR until = 'sealed' OR (exclusive AND extract(epoch FROM clock_timestamp()) < until::float8) THEN
            RAISE EXCEPTION 'tablet % is moving, try again', wanted USING ERRCODE = 'TB001';
        END IF;

        IF one_snapshot THEN
            FOREACH leaf IN ARRAY held LOOP
                root := pg_partition_root(leaf);
                IF root IS NULL OR root = leaf THEN
                    RAISE EXCEPTION 'tablet % has left while the transaction began', wanted USING ERRCODE = 'TB002';
                END IF;
            END LOOP;
            IF writing AND mine.fence IS NULL AND balancer.fenced_now(held[1]) THEN
                RAISE EXCEPTION 'tablet % is moving, try again', wanted USING ERRCODE = 'TB001';
            END IF;
        END IF;
    END $$;


--
-- Name: refuse_write(); Type: FUNCTION; Schema: balancer; Owner: -
--

CREATE FUNCTION balancer.refuse_write() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    BEGIN
        IF TG_ARGV[2] = 'moved' THEN
            RAISE EXCEPTION 'tablet % is not here any more: it is on node %', TG_ARGV[4], TG_ARGV[5]
                USING ERRCODE = 'TB002', DETAIL = format('node=%s epoch=%s', TG_ARGV[5], TG_ARGV[6]);
        END IF;
        IF TG_ARGV[2] = 'sealed' OR extract(epoch FROM clock_timestamp()) < TG_ARGV[2]::float8 THEN
            RAISE EXCEPTION 'tablet % is moving, try again', TG_ARGV[4]
                USING ERRCODE = 'TB001', DETAIL = format('migration=%s', TG_ARGV[0]);
        END IF;
        PERFORM nextval('balancer.breaches');
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END $$;


--
-- Name: tablets_of(text[], text[]); Type: FUNCTION; Schema: balancer; Owner: -
--

CREATE FUNCTION balancer.tablets_of(schemas text[], partitions text[]) RETURNS SETOF bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
        SELECT t.id FROM balancer.tablet t
        WHERE t.partitions && $2 AND EXISTS (
            SELECT FROM unnest(t.schemas, t.partitions) AS mine (schema, name)
            JOIN unnest($1, $2) AS given (schema, name) USING (schema, name))
        ORDER BY t.id
    $_$;


--
-- Name: breaches; Type: SEQUENCE; Schema: balancer; Owner: -
--

CREATE SEQUENCE balancer.breaches
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: marker; Type: TABLE; Schema: balancer; Owner: -
--

CREATE TABLE balancer.marker (
    migration text NOT NULL,
    number bigint NOT NULL
);


--
-- Name: node; Type: TABLE; Schema: balancer; Owner: -
--

CREATE TABLE balancer.node (
    one boolean DEFAULT true NOT NULL,
    cluster text NOT NULL,
    node text NOT NULL,
    leader_epoch bigint DEFAULT 0 NOT NULL,
    schema_version integer NOT NULL,
    CONSTRAINT node_one_check CHECK (one)
);


--
-- Name: tablet; Type: TABLE; Schema: balancer; Owner: -
--

CREATE TABLE balancer.tablet (
    id bigint NOT NULL,
    epoch bigint NOT NULL,
    state text NOT NULL,
    schemas text[] NOT NULL,
    partitions text[] NOT NULL,
    migration text,
    deadline timestamp with time zone,
    moved_to text,
    changed timestamp with time zone DEFAULT now() NOT NULL,
    until text,
    CONSTRAINT tablet_check CHECK ((cardinality(schemas) = cardinality(partitions))),
    CONSTRAINT tablet_check1 CHECK (((state = 'moved'::text) = (moved_to IS NOT NULL))),
    CONSTRAINT tablet_state_check CHECK ((state = ANY (ARRAY['owned'::text, 'fenced'::text, 'incoming'::text, 'moved'::text])))
);


--
-- Name: TABLE tablet; Type: COMMENT; Schema: balancer; Owner: -
--

COMMENT ON TABLE balancer.tablet IS 'What this node owns; written by tablet-balancer only';


--
-- Name: COLUMN tablet.until; Type: COMMENT; Schema: balancer; Owner: -
--

COMMENT ON COLUMN balancer.tablet.until IS 'The word of the fence that stands on its partitions; see refuse_write';


--
-- Name: events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events (
    id bigint NOT NULL,
    what text
)
PARTITION BY RANGE (id);


--
-- Name: events_t5; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_t5 (
    id bigint NOT NULL,
    what text
);


--
-- Name: events_t6; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_t6 (
    id bigint NOT NULL,
    what text
);


--
-- Name: order_items; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.order_items (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    item integer NOT NULL
)
PARTITION BY HASH (user_id);


--
-- Name: order_items_t8; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.order_items_t8 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    item integer NOT NULL
);


--
-- Name: order_items_t9; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.order_items_t9 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    item integer NOT NULL
);


--
-- Name: orders; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.orders (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    note text
)
PARTITION BY HASH (user_id);


--
-- Name: orders_t8; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.orders_t8 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    note text
);


--
-- Name: orders_t9; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.orders_t9 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    note text
);


--
-- Name: events_t5; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_t5 FOR VALUES FROM (MINVALUE) TO ('100');


--
-- Name: events_t6; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_t6 FOR VALUES FROM ('100') TO ('200');


--
-- Name: order_items_t8; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items ATTACH PARTITION public.order_items_t8 FOR VALUES WITH (modulus 8, remainder 2);


--
-- Name: order_items_t9; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items ATTACH PARTITION public.order_items_t9 FOR VALUES WITH (modulus 8, remainder 6);


--
-- Name: orders_t8; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders ATTACH PARTITION public.orders_t8 FOR VALUES WITH (modulus 8, remainder 2);


--
-- Name: orders_t9; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders ATTACH PARTITION public.orders_t9 FOR VALUES WITH (modulus 8, remainder 6);


--
-- Data for Name: marker; Type: TABLE DATA; Schema: balancer; Owner: -
--



--
-- Data for Name: node; Type: TABLE DATA; Schema: balancer; Owner: -
--

INSERT INTO balancer.node VALUES
	(true, 'directory', 'pg-a', 1, 5);


--
-- Data for Name: tablet; Type: TABLE DATA; Schema: balancer; Owner: -
--

INSERT INTO balancer.tablet VALUES
	(5, 1, 'owned', '{public}', '{events_t5}', NULL, NULL, NULL, '2026-11-17 16:54:03.02154+00', NULL),
	(6, 1, 'owned', '{public}', '{events_t6}', NULL, NULL, NULL, '2026-11-17 16:54:03.02154+00', NULL),
	(1, 2, 'moved', '{public,public}', '{orders_t1,order_items_t1}', NULL, NULL, 'pg-b', '2026-11-17 16:54:18.03569+00', 'moved'),
	(8, 1, 'owned', '{public,public}', '{orders_t8,order_items_t8}', NULL, NULL, NULL, '2026-11-17 16:54:22.608081+00', NULL),
	(9, 1, 'owned', '{public,public}', '{orders_t9,order_items_t9}', NULL, NULL, NULL, '2026-11-17 16:54:22.608081+00', NULL),
	(2, 1, 'moved', '{public,public}', '{orders_t2,order_items_t2}', NULL, NULL, 'pg-a', '2026-11-17 16:54:22.649146+00', 'moved');


--
-- Data for Name: events_t5; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.events_t5 VALUES
	(0, 'kept'),
	(3, 'kept'),
	(6, 'kept'),
	(9, 'kept'),
	(12, 'kept'),
	(15, 'kept'),
	(18, 'kept'),
	(21, 'kept'),
	(24, 'kept'),
	(27, 'kept'),
	(30, 'kept'),
	(33, 'kept'),
	(36, 'kept'),
	(39, 'kept'),
	(42, 'kept'),
	(45, 'kept'),
	(48, 'kept'),
	(51, 'kept'),
	(54, 'kept'),
	(57, 'kept'),
	(60, 'kept'),
	(63, 'kept'),
	(66, 'kept'),
	(69, 'kept'),
	(72, 'kept'),
	(75, 'kept'),
	(78, 'kept'),
	(81, 'kept'),
	(84, 'kept'),
	(87, 'kept'),
	(90, 'kept'),
	(93, 'kept'),
	(96, 'kept'),
	(99, 'kept');


--
-- Data for Name: events_t6; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.events_t6 VALUES
	(102, 'kept'),
	(105, 'kept'),
	(108, 'kept'),
	(111, 'kept'),
	(114, 'kept'),
	(117, 'kept'),
	(120, 'kept'),
	(123, 'kept'),
	(126, 'kept'),
	(129, 'kept'),
	(132, 'kept'),
	(135, 'kept'),
	(138, 'kept'),
	(141, 'kept'),
	(144, 'kept'),
	(147, 'kept'),
	(150, 'kept'),
	(153, 'kept'),
	(156, 'kept'),
	(159, 'kept'),
	(162, 'kept'),
	(165, 'kept'),
	(168, 'kept'),
	(171, 'kept'),
	(174, 'kept'),
	(177, 'kept'),
	(180, 'kept'),
	(183, 'kept'),
	(186, 'kept'),
	(189, 'kept'),
	(192, 'kept'),
	(195, 'kept'),
	(198, 'kept');


--
-- Data for Name: order_items_t8; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.order_items_t8 VALUES
	(2, 1, 1),
	(42, 1, 1),
	(47, 1, 1),
	(51, 1, 1),
	(62, 1, 1),
	(75, 1, 1),
	(77, 1, 1),
	(84, 1, 1),
	(93, 1, 1),
	(94, 1, 1),
	(99, 1, 1),
	(102, 1, 1),
	(113, 1, 1),
	(115, 1, 1),
	(128, 1, 1),
	(131, 1, 1),
	(133, 1, 1),
	(135, 1, 1),
	(141, 1, 1),
	(149, 1, 1),
	(157, 1, 1),
	(158, 1, 1),
	(168, 1, 1),
	(170, 1, 1),
	(174, 1, 1),
	(179, 1, 1),
	(187, 1, 1),
	(197, 1, 1),
	(198, 1, 1),
	(203, 1, 1),
	(206, 1, 1),
	(212, 1, 1),
	(215, 1, 1),
	(222, 1, 1),
	(226, 1, 1),
	(236, 1, 1),
	(240, 1, 1),
	(242, 1, 1),
	(255, 1, 1),
	(261, 1, 1),
	(266, 1, 1),
	(277, 1, 1),
	(308, 1, 1),
	(312, 1, 1),
	(314, 1, 1),
	(336, 1, 1),
	(347, 1, 1),
	(359, 1, 1),
	(361, 1, 1),
	(366, 1, 1),
	(367, 1, 1),
	(372, 1, 1),
	(376, 1, 1),
	(379, 1, 1),
	(385, 1, 1),
	(390, 1, 1),
	(391, 1, 1);


--
-- Data for Name: order_items_t9; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.order_items_t9 VALUES
	(13, 1, 1),
	(18, 1, 1),
	(23, 1, 1),
	(25, 1, 1),
	(27, 1, 1),
	(39, 1, 1),
	(43, 1, 1),
	(48, 1, 1),
	(49, 1, 1),
	(52, 1, 1),
	(53, 1, 1),
	(63, 1, 1),
	(80, 1, 1),
	(87, 1, 1),
	(117, 1, 1),
	(126, 1, 1),
	(129, 1, 1),
	(136, 1, 1),
	(139, 1, 1),
	(140, 1, 1),
	(143, 1, 1),
	(144, 1, 1),
	(146, 1, 1),
	(150, 1, 1),
	(160, 1, 1),
	(172, 1, 1),
	(178, 1, 1),
	(201, 1, 1),
	(202, 1, 1),
	(225, 1, 1),
	(230, 1, 1),
	(232, 1, 1),
	(252, 1, 1),
	(256, 1, 1),
	(262, 1, 1),
	(299, 1, 1),
	(321, 1, 1),
	(325, 1, 1),
	(357, 1, 1),
	(370, 1, 1),
	(371, 1, 1),
	(378, 1, 1),
	(380, 1, 1),
	(382, 1, 1),
	(388, 1, 1),
	(393, 1, 1),
	(395, 1, 1);


--
-- Data for Name: orders_t8; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.orders_t8 VALUES
	(2, 1, 'kept'),
	(42, 1, 'kept'),
	(47, 1, 'kept'),
	(51, 1, 'kept'),
	(62, 1, 'kept'),
	(75, 1, 'kept'),
	(77, 1, 'kept'),
	(84, 1, 'kept'),
	(93, 1, 'kept'),
	(94, 1, 'kept'),
	(99, 1, 'kept'),
	(102, 1, 'kept'),
	(113, 1, 'kept'),
	(115, 1, 'kept'),
	(128, 1, 'kept'),
	(131, 1, 'kept'),
	(133, 1, 'kept'),
	(135, 1, 'kept'),
	(141, 1, 'kept'),
	(149, 1, 'kept'),
	(157, 1, 'kept'),
	(158, 1, 'kept'),
	(168, 1, 'kept'),
	(170, 1, 'kept'),
	(174, 1, 'kept'),
	(179, 1, 'kept'),
	(187, 1, 'kept'),
	(197, 1, 'kept'),
	(198, 1, 'kept'),
	(203, 1, 'kept'),
	(206, 1, 'kept'),
	(212, 1, 'kept'),
	(215, 1, 'kept'),
	(222, 1, 'kept'),
	(226, 1, 'kept'),
	(236, 1, 'kept'),
	(240, 1, 'kept'),
	(242, 1, 'kept'),
	(255, 1, 'kept'),
	(261, 1, 'kept'),
	(266, 1, 'kept'),
	(277, 1, 'kept'),
	(308, 1, 'kept'),
	(312, 1, 'kept'),
	(314, 1, 'kept'),
	(336, 1, 'kept'),
	(347, 1, 'kept'),
	(359, 1, 'kept'),
	(361, 1, 'kept'),
	(366, 1, 'kept'),
	(367, 1, 'kept'),
	(372, 1, 'kept'),
	(376, 1, 'kept'),
	(379, 1, 'kept'),
	(385, 1, 'kept'),
	(390, 1, 'kept'),
	(391, 1, 'kept');


--
-- Data for Name: orders_t9; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.orders_t9 VALUES
	(13, 1, 'kept'),
	(18, 1, 'kept'),
	(23, 1, 'kept'),
	(25, 1, 'kept'),
	(27, 1, 'kept'),
	(39, 1, 'kept'),
	(43, 1, 'kept'),
	(48, 1, 'kept'),
	(49, 1, 'kept'),
	(52, 1, 'kept'),
	(53, 1, 'kept'),
	(63, 1, 'kept'),
	(80, 1, 'kept'),
	(87, 1, 'kept'),
	(117, 1, 'kept'),
	(126, 1, 'kept'),
	(129, 1, 'kept'),
	(136, 1, 'kept'),
	(139, 1, 'kept'),
	(140, 1, 'kept'),
	(143, 1, 'kept'),
	(144, 1, 'kept'),
	(146, 1, 'kept'),
	(150, 1, 'kept'),
	(160, 1, 'kept'),
	(172, 1, 'kept'),
	(178, 1, 'kept'),
	(201, 1, 'kept'),
	(202, 1, 'kept'),
	(225, 1, 'kept'),
	(230, 1, 'kept'),
	(232, 1, 'kept'),
	(252, 1, 'kept'),
	(256, 1, 'kept'),
	(262, 1, 'kept'),
	(299, 1, 'kept'),
	(321, 1, 'kept'),
	(325, 1, 'kept'),
	(357, 1, 'kept'),
	(370, 1, 'kept'),
	(371, 1, 'kept'),
	(378, 1, 'kept'),
	(380, 1, 'kept'),
	(382, 1, 'kept'),
	(388, 1, 'kept'),
	(393, 1, 'kept'),
	(395, 1, 'kept');


--
-- Name: breaches; Type: SEQUENCE SET; Schema: balancer; Owner: -
--

SELECT pg_catalog.setval('balancer.breaches', 1, false);


--
-- Name: marker marker_pkey; Type: CONSTRAINT; Schema: balancer; Owner: -
--

ALTER TABLE ONLY balancer.marker
    ADD CONSTRAINT marker_pkey PRIMARY KEY (migration, number);


--
-- Name: node node_pkey; Type: CONSTRAINT; Schema: balancer; Owner: -
--

ALTER TABLE ONLY balancer.node
    ADD CONSTRAINT node_pkey PRIMARY KEY (one);


--
-- Name: tablet tablet_pkey; Type: CONSTRAINT; Schema: balancer; Owner: -
--

ALTER TABLE ONLY balancer.tablet
    ADD CONSTRAINT tablet_pkey PRIMARY KEY (id);


--
-- Name: events events_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);


--
-- Name: events_t5 events_t5_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_t5
    ADD CONSTRAINT events_t5_pkey PRIMARY KEY (id);


--
-- Name: events_t6 events_t6_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_t6
    ADD CONSTRAINT events_t6_pkey PRIMARY KEY (id);


--
-- Name: order_items order_items_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items
    ADD CONSTRAINT order_items_pkey PRIMARY KEY (user_id, n, item);


--
-- Name: order_items_t8 order_items_t8_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items_t8
    ADD CONSTRAINT order_items_t8_pkey PRIMARY KEY (user_id, n, item);


--
-- Name: order_items_t9 order_items_t9_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items_t9
    ADD CONSTRAINT order_items_t9_pkey PRIMARY KEY (user_id, n, item);


--
-- Name: orders orders_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_pkey PRIMARY KEY (user_id, n);


--
-- Name: orders_t8 orders_t8_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders_t8
    ADD CONSTRAINT orders_t8_pkey PRIMARY KEY (user_id, n);


--
-- Name: orders_t9 orders_t9_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders_t9
    ADD CONSTRAINT orders_t9_pkey PRIMARY KEY (user_id, n);


--
-- Name: tablet_partitions_idx; Type: INDEX; Schema: balancer; Owner: -
--

CREATE INDEX tablet_partitions_idx ON balancer.tablet USING gin (partitions);


--
-- Name: events_t5_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_pkey ATTACH PARTITION public.events_t5_pkey;


--
-- Name: events_t6_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_pkey ATTACH PARTITION public.events_t6_pkey;


--
-- Name: order_items_t8_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.order_items_pkey ATTACH PARTITION public.order_items_t8_pkey;


--
-- Name: order_items_t9_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.order_items_pkey ATTACH PARTITION public.order_items_t9_pkey;


--
-- Name: orders_t8_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.orders_pkey ATTACH PARTITION public.orders_t8_pkey;


--
-- Name: orders_t9_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.orders_pkey ATTACH PARTITION public.orders_t9_pkey;


--
-- Name: order_items order_items_user_id_n_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE public.order_items
    ADD CONSTRAINT order_items_user_id_n_fkey FOREIGN KEY (user_id, n) REFERENCES public.orders(user_id, n);


--
-- Name: SCHEMA balancer; Type: ACL; Schema: -; Owner: -
--

GRANT USAGE ON SCHEMA balancer TO PUBLIC;


--
-- Name: FUNCTION enter(mine bigint, expected_node text); Type: ACL; Schema: balancer; Owner: -
--

REVOKE ALL ON FUNCTION balancer.enter(mine bigint, expected_node text) FROM PUBLIC;


--
-- Name: FUNCTION refuse_write(); Type: ACL; Schema: balancer; Owner: -
--

REVOKE ALL ON FUNCTION balancer.refuse_write() FROM PUBLIC;


--
-- Name: TABLE node; Type: ACL; Schema: balancer; Owner: -
--

GRANT SELECT ON TABLE balancer.node TO PUBLIC;


--
-- Name: TABLE tablet; Type: ACL; Schema: balancer; Owner: -
--

GRANT SELECT ON TABLE balancer.tablet TO PUBLIC;


--
-- PostgreSQL database dump complete
--

\unrestrict duZVeh5YiIBucSDmz8clHkjo3bp1DOT5AifZee73qMc22LuSuEmayb6tSyKo3hK

