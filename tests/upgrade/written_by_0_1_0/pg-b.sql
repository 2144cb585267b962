--
-- PostgreSQL database dump
--

\restrict q4ZOmIHKgQmaBCO92cdyW92M8mioVZpelR7cS9ttZCZvwd3muA6eNoR4f6xQsMh

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
-- Name: events_t7; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_t7 (
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
-- Name: order_items_t1; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.order_items_t1 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    item integer NOT NULL
);


--
-- Name: order_items_t3; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.order_items_t3 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    item integer NOT NULL
);


--
-- Name: order_items_t4; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.order_items_t4 (
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
-- Name: orders_t1; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.orders_t1 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    note text
);


--
-- Name: orders_t3; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.orders_t3 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    note text
);


--
-- Name: orders_t4; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.orders_t4 (
    user_id bigint NOT NULL,
    n integer NOT NULL,
    note text
);


--
-- Name: events_t7; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_t7 FOR VALUES FROM ('200') TO (MAXVALUE);


--
-- Name: order_items_t1; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items ATTACH PARTITION public.order_items_t1 FOR VALUES WITH (modulus 4, remainder 0);


--
-- Name: order_items_t3; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items ATTACH PARTITION public.order_items_t3 FOR VALUES WITH (modulus 4, remainder 1);


--
-- Name: order_items_t4; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items ATTACH PARTITION public.order_items_t4 FOR VALUES WITH (modulus 4, remainder 3);


--
-- Name: orders_t1; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders ATTACH PARTITION public.orders_t1 FOR VALUES WITH (modulus 4, remainder 0);


--
-- Name: orders_t3; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders ATTACH PARTITION public.orders_t3 FOR VALUES WITH (modulus 4, remainder 1);


--
-- Name: orders_t4; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders ATTACH PARTITION public.orders_t4 FOR VALUES WITH (modulus 4, remainder 3);


--
-- Data for Name: marker; Type: TABLE DATA; Schema: balancer; Owner: -
--



--
-- Data for Name: node; Type: TABLE DATA; Schema: balancer; Owner: -
--

INSERT INTO balancer.node VALUES
	(true, 'directory', 'pg-b', 1, 5);


--
-- Data for Name: tablet; Type: TABLE DATA; Schema: balancer; Owner: -
--

INSERT INTO balancer.tablet VALUES
	(3, 1, 'owned', '{public,public}', '{orders_t3,order_items_t3}', NULL, NULL, NULL, '2026-11-17 16:53:58.513955+00', NULL),
	(4, 1, 'owned', '{public,public}', '{orders_t4,order_items_t4}', NULL, NULL, NULL, '2026-11-17 16:53:58.513955+00', NULL),
	(7, 1, 'owned', '{public}', '{events_t7}', NULL, NULL, NULL, '2026-11-17 16:54:03.067275+00', NULL),
	(1, 2, 'owned', '{public,public}', '{orders_t1,order_items_t1}', NULL, NULL, NULL, '2026-11-17 16:54:18.006537+00', NULL);


--
-- Data for Name: events_t7; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.events_t7 VALUES
	(201, 'kept'),
	(204, 'kept'),
	(207, 'kept'),
	(210, 'kept'),
	(213, 'kept'),
	(216, 'kept'),
	(219, 'kept'),
	(222, 'kept'),
	(225, 'kept'),
	(228, 'kept'),
	(231, 'kept'),
	(234, 'kept'),
	(237, 'kept'),
	(240, 'kept'),
	(243, 'kept'),
	(246, 'kept'),
	(249, 'kept'),
	(252, 'kept'),
	(255, 'kept'),
	(258, 'kept'),
	(261, 'kept'),
	(264, 'kept'),
	(267, 'kept'),
	(270, 'kept'),
	(273, 'kept'),
	(276, 'kept'),
	(279, 'kept'),
	(282, 'kept'),
	(285, 'kept'),
	(288, 'kept'),
	(291, 'kept'),
	(294, 'kept'),
	(297, 'kept');


--
-- Data for Name: order_items_t1; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.order_items_t1 VALUES
	(0, 1, 1),
	(1, 1, 1),
	(12, 1, 1),
	(14, 1, 1),
	(16, 1, 1),
	(17, 1, 1),
	(26, 1, 1),
	(28, 1, 1),
	(30, 1, 1),
	(32, 1, 1),
	(34, 1, 1),
	(44, 1, 1),
	(45, 1, 1),
	(50, 1, 1),
	(54, 1, 1),
	(59, 1, 1),
	(60, 1, 1),
	(64, 1, 1),
	(66, 1, 1),
	(67, 1, 1),
	(71, 1, 1),
	(74, 1, 1),
	(79, 1, 1),
	(81, 1, 1),
	(83, 1, 1),
	(85, 1, 1),
	(88, 1, 1),
	(91, 1, 1),
	(101, 1, 1),
	(104, 1, 1),
	(107, 1, 1),
	(108, 1, 1),
	(112, 1, 1),
	(114, 1, 1),
	(119, 1, 1),
	(123, 1, 1),
	(125, 1, 1),
	(134, 1, 1),
	(138, 1, 1),
	(142, 1, 1),
	(151, 1, 1),
	(152, 1, 1),
	(153, 1, 1),
	(155, 1, 1),
	(156, 1, 1),
	(165, 1, 1),
	(166, 1, 1),
	(167, 1, 1),
	(171, 1, 1),
	(176, 1, 1),
	(180, 1, 1),
	(183, 1, 1),
	(185, 1, 1),
	(186, 1, 1),
	(188, 1, 1),
	(189, 1, 1),
	(192, 1, 1),
	(194, 1, 1),
	(204, 1, 1),
	(205, 1, 1),
	(207, 1, 1),
	(208, 1, 1),
	(209, 1, 1),
	(210, 1, 1),
	(213, 1, 1),
	(214, 1, 1),
	(216, 1, 1),
	(219, 1, 1),
	(223, 1, 1),
	(227, 1, 1),
	(229, 1, 1),
	(238, 1, 1),
	(239, 1, 1),
	(247, 1, 1),
	(248, 1, 1),
	(251, 1, 1),
	(263, 1, 1),
	(267, 1, 1),
	(270, 1, 1),
	(275, 1, 1),
	(283, 1, 1),
	(284, 1, 1),
	(292, 1, 1),
	(294, 1, 1),
	(296, 1, 1),
	(297, 1, 1),
	(298, 1, 1),
	(300, 1, 1),
	(302, 1, 1),
	(305, 1, 1),
	(306, 1, 1),
	(307, 1, 1),
	(316, 1, 1),
	(317, 1, 1),
	(324, 1, 1),
	(326, 1, 1),
	(330, 1, 1),
	(331, 1, 1),
	(332, 1, 1),
	(338, 1, 1);
INSERT INTO public.order_items_t1 VALUES
	(340, 1, 1),
	(343, 1, 1),
	(344, 1, 1),
	(345, 1, 1),
	(346, 1, 1),
	(350, 1, 1),
	(351, 1, 1),
	(354, 1, 1),
	(362, 1, 1),
	(365, 1, 1),
	(375, 1, 1),
	(383, 1, 1),
	(384, 1, 1),
	(386, 1, 1),
	(387, 1, 1);


--
-- Data for Name: order_items_t3; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.order_items_t3 VALUES
	(3, 1, 1),
	(5, 1, 1),
	(8, 1, 1),
	(9, 1, 1),
	(11, 1, 1),
	(19, 1, 1),
	(20, 1, 1),
	(21, 1, 1),
	(31, 1, 1),
	(35, 1, 1),
	(36, 1, 1),
	(37, 1, 1),
	(38, 1, 1),
	(41, 1, 1),
	(46, 1, 1),
	(56, 1, 1),
	(61, 1, 1),
	(68, 1, 1),
	(69, 1, 1),
	(70, 1, 1),
	(72, 1, 1),
	(73, 1, 1),
	(76, 1, 1),
	(78, 1, 1),
	(89, 1, 1),
	(90, 1, 1),
	(92, 1, 1),
	(95, 1, 1),
	(96, 1, 1),
	(98, 1, 1),
	(100, 1, 1),
	(103, 1, 1),
	(110, 1, 1),
	(111, 1, 1),
	(116, 1, 1),
	(118, 1, 1),
	(120, 1, 1),
	(130, 1, 1),
	(145, 1, 1),
	(148, 1, 1),
	(154, 1, 1),
	(161, 1, 1),
	(162, 1, 1),
	(164, 1, 1),
	(169, 1, 1),
	(177, 1, 1),
	(182, 1, 1),
	(184, 1, 1),
	(190, 1, 1),
	(193, 1, 1),
	(196, 1, 1),
	(218, 1, 1),
	(220, 1, 1),
	(224, 1, 1),
	(228, 1, 1),
	(234, 1, 1),
	(243, 1, 1),
	(244, 1, 1),
	(245, 1, 1),
	(249, 1, 1),
	(250, 1, 1),
	(253, 1, 1),
	(259, 1, 1),
	(260, 1, 1),
	(265, 1, 1),
	(269, 1, 1),
	(272, 1, 1),
	(273, 1, 1),
	(285, 1, 1),
	(288, 1, 1),
	(295, 1, 1),
	(303, 1, 1),
	(304, 1, 1),
	(309, 1, 1),
	(311, 1, 1),
	(318, 1, 1),
	(319, 1, 1),
	(320, 1, 1),
	(323, 1, 1),
	(328, 1, 1),
	(333, 1, 1),
	(334, 1, 1),
	(337, 1, 1),
	(339, 1, 1),
	(342, 1, 1),
	(348, 1, 1),
	(356, 1, 1),
	(358, 1, 1),
	(360, 1, 1),
	(364, 1, 1),
	(369, 1, 1),
	(377, 1, 1),
	(389, 1, 1),
	(392, 1, 1),
	(394, 1, 1),
	(398, 1, 1),
	(399, 1, 1);


--
-- Data for Name: order_items_t4; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.order_items_t4 VALUES
	(4, 1, 1),
	(6, 1, 1),
	(7, 1, 1),
	(10, 1, 1),
	(15, 1, 1),
	(22, 1, 1),
	(24, 1, 1),
	(29, 1, 1),
	(33, 1, 1),
	(40, 1, 1),
	(55, 1, 1),
	(57, 1, 1),
	(58, 1, 1),
	(65, 1, 1),
	(82, 1, 1),
	(86, 1, 1),
	(97, 1, 1),
	(105, 1, 1),
	(106, 1, 1),
	(109, 1, 1),
	(121, 1, 1),
	(122, 1, 1),
	(124, 1, 1),
	(127, 1, 1),
	(132, 1, 1),
	(137, 1, 1),
	(147, 1, 1),
	(159, 1, 1),
	(163, 1, 1),
	(173, 1, 1),
	(175, 1, 1),
	(181, 1, 1),
	(191, 1, 1),
	(195, 1, 1),
	(199, 1, 1),
	(200, 1, 1),
	(211, 1, 1),
	(217, 1, 1),
	(221, 1, 1),
	(231, 1, 1),
	(233, 1, 1),
	(235, 1, 1),
	(237, 1, 1),
	(241, 1, 1),
	(246, 1, 1),
	(254, 1, 1),
	(257, 1, 1),
	(258, 1, 1),
	(264, 1, 1),
	(268, 1, 1),
	(271, 1, 1),
	(274, 1, 1),
	(276, 1, 1),
	(278, 1, 1),
	(279, 1, 1),
	(280, 1, 1),
	(281, 1, 1),
	(282, 1, 1),
	(286, 1, 1),
	(287, 1, 1),
	(289, 1, 1),
	(290, 1, 1),
	(291, 1, 1),
	(293, 1, 1),
	(301, 1, 1),
	(310, 1, 1),
	(313, 1, 1),
	(315, 1, 1),
	(322, 1, 1),
	(327, 1, 1),
	(329, 1, 1),
	(335, 1, 1),
	(341, 1, 1),
	(349, 1, 1),
	(352, 1, 1),
	(353, 1, 1),
	(355, 1, 1),
	(363, 1, 1),
	(368, 1, 1),
	(373, 1, 1),
	(374, 1, 1),
	(381, 1, 1),
	(396, 1, 1),
	(397, 1, 1);


--
-- Data for Name: orders_t1; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.orders_t1 VALUES
	(0, 1, 'kept'),
	(1, 1, 'kept'),
	(12, 1, 'kept'),
	(14, 1, 'kept'),
	(16, 1, 'kept'),
	(17, 1, 'kept'),
	(26, 1, 'kept'),
	(28, 1, 'kept'),
	(30, 1, 'kept'),
	(32, 1, 'kept'),
	(34, 1, 'kept'),
	(44, 1, 'kept'),
	(45, 1, 'kept'),
	(50, 1, 'kept'),
	(54, 1, 'kept'),
	(59, 1, 'kept'),
	(60, 1, 'kept'),
	(64, 1, 'kept'),
	(66, 1, 'kept'),
	(67, 1, 'kept'),
	(71, 1, 'kept'),
	(74, 1, 'kept'),
	(79, 1, 'kept'),
	(81, 1, 'kept'),
	(83, 1, 'kept'),
	(85, 1, 'kept'),
	(88, 1, 'kept'),
	(91, 1, 'kept'),
	(101, 1, 'kept'),
	(104, 1, 'kept'),
	(107, 1, 'kept'),
	(108, 1, 'kept'),
	(112, 1, 'kept'),
	(114, 1, 'kept'),
	(119, 1, 'kept'),
	(123, 1, 'kept'),
	(125, 1, 'kept'),
	(134, 1, 'kept'),
	(138, 1, 'kept'),
	(142, 1, 'kept'),
	(151, 1, 'kept'),
	(152, 1, 'kept'),
	(153, 1, 'kept'),
	(155, 1, 'kept'),
	(156, 1, 'kept'),
	(165, 1, 'kept'),
	(166, 1, 'kept'),
	(167, 1, 'kept'),
	(171, 1, 'kept'),
	(176, 1, 'kept'),
	(180, 1, 'kept'),
	(183, 1, 'kept'),
	(185, 1, 'kept'),
	(186, 1, 'kept'),
	(188, 1, 'kept'),
	(189, 1, 'kept'),
	(192, 1, 'kept'),
	(194, 1, 'kept'),
	(204, 1, 'kept'),
	(205, 1, 'kept'),
	(207, 1, 'kept'),
	(208, 1, 'kept'),
	(209, 1, 'kept'),
	(210, 1, 'kept'),
	(213, 1, 'kept'),
	(214, 1, 'kept'),
	(216, 1, 'kept'),
	(219, 1, 'kept'),
	(223, 1, 'kept'),
	(227, 1, 'kept'),
	(229, 1, 'kept'),
	(238, 1, 'kept'),
	(239, 1, 'kept'),
	(247, 1, 'kept'),
	(248, 1, 'kept'),
	(251, 1, 'kept'),
	(263, 1, 'kept'),
	(267, 1, 'kept'),
	(270, 1, 'kept'),
	(275, 1, 'kept'),
	(283, 1, 'kept'),
	(284, 1, 'kept'),
	(292, 1, 'kept'),
	(294, 1, 'kept'),
	(296, 1, 'kept'),
	(297, 1, 'kept'),
	(298, 1, 'kept'),
	(300, 1, 'kept'),
	(302, 1, 'kept'),
	(305, 1, 'kept'),
	(306, 1, 'kept'),
	(307, 1, 'kept'),
	(316, 1, 'kept'),
	(317, 1, 'kept'),
	(324, 1, 'kept'),
	(326, 1, 'kept'),
	(330, 1, 'kept'),
	(331, 1, 'kept'),
	(332, 1, 'kept'),
	(338, 1, 'kept');
INSERT INTO public.orders_t1 VALUES
	(340, 1, 'kept'),
	(343, 1, 'kept'),
	(344, 1, 'kept'),
	(345, 1, 'kept'),
	(346, 1, 'kept'),
	(350, 1, 'kept'),
	(351, 1, 'kept'),
	(354, 1, 'kept'),
	(362, 1, 'kept'),
	(365, 1, 'kept'),
	(375, 1, 'kept'),
	(383, 1, 'kept'),
	(384, 1, 'kept'),
	(386, 1, 'kept'),
	(387, 1, 'kept');


--
-- Data for Name: orders_t3; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.orders_t3 VALUES
	(3, 1, 'kept'),
	(5, 1, 'kept'),
	(8, 1, 'kept'),
	(9, 1, 'kept'),
	(11, 1, 'kept'),
	(19, 1, 'kept'),
	(20, 1, 'kept'),
	(21, 1, 'kept'),
	(31, 1, 'kept'),
	(35, 1, 'kept'),
	(36, 1, 'kept'),
	(37, 1, 'kept'),
	(38, 1, 'kept'),
	(41, 1, 'kept'),
	(46, 1, 'kept'),
	(56, 1, 'kept'),
	(61, 1, 'kept'),
	(68, 1, 'kept'),
	(69, 1, 'kept'),
	(70, 1, 'kept'),
	(72, 1, 'kept'),
	(73, 1, 'kept'),
	(76, 1, 'kept'),
	(78, 1, 'kept'),
	(89, 1, 'kept'),
	(90, 1, 'kept'),
	(92, 1, 'kept'),
	(95, 1, 'kept'),
	(96, 1, 'kept'),
	(98, 1, 'kept'),
	(100, 1, 'kept'),
	(103, 1, 'kept'),
	(110, 1, 'kept'),
	(111, 1, 'kept'),
	(116, 1, 'kept'),
	(118, 1, 'kept'),
	(120, 1, 'kept'),
	(130, 1, 'kept'),
	(145, 1, 'kept'),
	(148, 1, 'kept'),
	(154, 1, 'kept'),
	(161, 1, 'kept'),
	(162, 1, 'kept'),
	(164, 1, 'kept'),
	(169, 1, 'kept'),
	(177, 1, 'kept'),
	(182, 1, 'kept'),
	(184, 1, 'kept'),
	(190, 1, 'kept'),
	(193, 1, 'kept'),
	(196, 1, 'kept'),
	(218, 1, 'kept'),
	(220, 1, 'kept'),
	(224, 1, 'kept'),
	(228, 1, 'kept'),
	(234, 1, 'kept'),
	(243, 1, 'kept'),
	(244, 1, 'kept'),
	(245, 1, 'kept'),
	(249, 1, 'kept'),
	(250, 1, 'kept'),
	(253, 1, 'kept'),
	(259, 1, 'kept'),
	(260, 1, 'kept'),
	(265, 1, 'kept'),
	(269, 1, 'kept'),
	(272, 1, 'kept'),
	(273, 1, 'kept'),
	(285, 1, 'kept'),
	(288, 1, 'kept'),
	(295, 1, 'kept'),
	(303, 1, 'kept'),
	(304, 1, 'kept'),
	(309, 1, 'kept'),
	(311, 1, 'kept'),
	(318, 1, 'kept'),
	(319, 1, 'kept'),
	(320, 1, 'kept'),
	(323, 1, 'kept'),
	(328, 1, 'kept'),
	(333, 1, 'kept'),
	(334, 1, 'kept'),
	(337, 1, 'kept'),
	(339, 1, 'kept'),
	(342, 1, 'kept'),
	(348, 1, 'kept'),
	(356, 1, 'kept'),
	(358, 1, 'kept'),
	(360, 1, 'kept'),
	(364, 1, 'kept'),
	(369, 1, 'kept'),
	(377, 1, 'kept'),
	(389, 1, 'kept'),
	(392, 1, 'kept'),
	(394, 1, 'kept'),
	(398, 1, 'kept'),
	(399, 1, 'kept');


--
-- Data for Name: orders_t4; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.orders_t4 VALUES
	(4, 1, 'kept'),
	(6, 1, 'kept'),
	(7, 1, 'kept'),
	(10, 1, 'kept'),
	(15, 1, 'kept'),
	(22, 1, 'kept'),
	(24, 1, 'kept'),
	(29, 1, 'kept'),
	(33, 1, 'kept'),
	(40, 1, 'kept'),
	(55, 1, 'kept'),
	(57, 1, 'kept'),
	(58, 1, 'kept'),
	(65, 1, 'kept'),
	(82, 1, 'kept'),
	(86, 1, 'kept'),
	(97, 1, 'kept'),
	(105, 1, 'kept'),
	(106, 1, 'kept'),
	(109, 1, 'kept'),
	(121, 1, 'kept'),
	(122, 1, 'kept'),
	(124, 1, 'kept'),
	(127, 1, 'kept'),
	(132, 1, 'kept'),
	(137, 1, 'kept'),
	(147, 1, 'kept'),
	(159, 1, 'kept'),
	(163, 1, 'kept'),
	(173, 1, 'kept'),
	(175, 1, 'kept'),
	(181, 1, 'kept'),
	(191, 1, 'kept'),
	(195, 1, 'kept'),
	(199, 1, 'kept'),
	(200, 1, 'kept'),
	(211, 1, 'kept'),
	(217, 1, 'kept'),
	(221, 1, 'kept'),
	(231, 1, 'kept'),
	(233, 1, 'kept'),
	(235, 1, 'kept'),
	(237, 1, 'kept'),
	(241, 1, 'kept'),
	(246, 1, 'kept'),
	(254, 1, 'kept'),
	(257, 1, 'kept'),
	(258, 1, 'kept'),
	(264, 1, 'kept'),
	(268, 1, 'kept'),
	(271, 1, 'kept'),
	(274, 1, 'kept'),
	(276, 1, 'kept'),
	(278, 1, 'kept'),
	(279, 1, 'kept'),
	(280, 1, 'kept'),
	(281, 1, 'kept'),
	(282, 1, 'kept'),
	(286, 1, 'kept'),
	(287, 1, 'kept'),
	(289, 1, 'kept'),
	(290, 1, 'kept'),
	(291, 1, 'kept'),
	(293, 1, 'kept'),
	(301, 1, 'kept'),
	(310, 1, 'kept'),
	(313, 1, 'kept'),
	(315, 1, 'kept'),
	(322, 1, 'kept'),
	(327, 1, 'kept'),
	(329, 1, 'kept'),
	(335, 1, 'kept'),
	(341, 1, 'kept'),
	(349, 1, 'kept'),
	(352, 1, 'kept'),
	(353, 1, 'kept'),
	(355, 1, 'kept'),
	(363, 1, 'kept'),
	(368, 1, 'kept'),
	(373, 1, 'kept'),
	(374, 1, 'kept'),
	(381, 1, 'kept'),
	(396, 1, 'kept'),
	(397, 1, 'kept');


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
-- Name: events_t7 events_t7_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_t7
    ADD CONSTRAINT events_t7_pkey PRIMARY KEY (id);


--
-- Name: order_items order_items_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items
    ADD CONSTRAINT order_items_pkey PRIMARY KEY (user_id, n, item);


--
-- Name: order_items_t1 order_items_t1_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items_t1
    ADD CONSTRAINT order_items_t1_pkey PRIMARY KEY (user_id, n, item);


--
-- Name: order_items_t3 order_items_t3_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items_t3
    ADD CONSTRAINT order_items_t3_pkey PRIMARY KEY (user_id, n, item);


--
-- Name: order_items_t4 order_items_t4_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.order_items_t4
    ADD CONSTRAINT order_items_t4_pkey PRIMARY KEY (user_id, n, item);


--
-- Name: orders orders_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_pkey PRIMARY KEY (user_id, n);


--
-- Name: orders_t1 orders_t1_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders_t1
    ADD CONSTRAINT orders_t1_pkey PRIMARY KEY (user_id, n);


--
-- Name: orders_t3 orders_t3_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders_t3
    ADD CONSTRAINT orders_t3_pkey PRIMARY KEY (user_id, n);


--
-- Name: orders_t4 orders_t4_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.orders_t4
    ADD CONSTRAINT orders_t4_pkey PRIMARY KEY (user_id, n);


--
-- Name: tablet_partitions_idx; Type: INDEX; Schema: balancer; Owner: -
--

CREATE INDEX tablet_partitions_idx ON balancer.tablet USING gin (partitions);


--
-- Name: events_t7_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_pkey ATTACH PARTITION public.events_t7_pkey;


--
-- Name: order_items_t1_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.order_items_pkey ATTACH PARTITION public.order_items_t1_pkey;


--
-- Name: order_items_t3_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.order_items_pkey ATTACH PARTITION public.order_items_t3_pkey;


--
-- Name: order_items_t4_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.order_items_pkey ATTACH PARTITION public.order_items_t4_pkey;


--
-- Name: orders_t1_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.orders_pkey ATTACH PARTITION public.orders_t1_pkey;


--
-- Name: orders_t3_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.orders_pkey ATTACH PARTITION public.orders_t3_pkey;


--
-- Name: orders_t4_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.orders_pkey ATTACH PARTITION public.orders_t4_pkey;


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

\unrestrict q4ZOmIHKgQmaBCO92cdyW92M8mioVZpelR7cS9ttZCZvwd3muA6eNoR4f6xQsMh

