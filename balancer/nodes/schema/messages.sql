/*
Exactly-once messages between shards: what a node keeps of them, and the functions that send, deliver and settle.

A transaction on one tablet stores a message in its table's *outbox*; it is applied at its target's owner in a
transaction there, which also writes a row into the target table's *inbox*. Both are roots of the table, partitioned as
it is, with its key: so moves, splits and merges carry them with the rows that they belong to. The sender delivers right
after its commit (`client.messages`); the leader delivers what it leaves behind (`features.messages.service`).

The argument
============

 1. *No message without its change, no change without its message*: both are one transaction on one tablet. Its commit
    waits for the disk whatever the application has chosen (`send_message`): otherwise a crash could take the change
    back after the target had the message. A message of a part of an atomic transaction is delivered only after that
    part is committed, not when it is decided: until then nobody sees it, and 6 would take it for gone.
 2. *Applied once.* The row in the inbox is unique by key and message and is written by the transaction that applies it.
    A second delivery waits for the first, then finds the row and changes nothing. `balancer.hold` has proven that the
    node owns the target's tablet, and the inbox has travelled with it, so there is one inbox to ask.
 3. *Applied or failed, never both.* A message is given up by writing "failed" in the same place in the inbox. The
    reversal at the sender follows only after that row is committed, in one transaction with the change of the outbox
    row from pending to failed: it happens once, and a late delivery finds "failed" and applies nothing.
 4. *In order.* A transaction that sends waits for others that have sent from the same key, so that numbers are assigned
    in the order of the commits. A process that delivers a message knows that every earlier one from that key to the
    same target is settled: none is pending by the statement that found the message, or it has just delivered it.
 5. *The sender forgets first.* A row leaves the outbox only when the inbox has the outcome on disk.
 6. *The inbox forgets when no delivery can come any more.* Each delivery brings a *ticket*: the clock of the target's
    server, read before the outbox row was read (or written) by a node that had proven to own it. A ticket is good for
    ten minutes, on the server that gave it. An inbox row is marked after its outbox row was seen to be gone, by a read
    that proved to be the owner's, and after whatever that read could see is on the sender's disk. It is deleted two
    hours after the mark, by the same server's clock. A delivery after that has read the outbox row before it was gone,
    and its ticket before that: by then the ticket is older than two hours. The mark says which server made it, and a
    server to which the tablet has since moved marks it again. Outbox rows do not come back under another key: `rekey`
    refuses a key that has any.
 7. *What was given up is reversed.* "Failed" is forgotten only after somebody has dismissed the message: the inbox
    learns that first, and by then the outbox row says that it is reversed. So "failed" at a target, not dismissed,
    without a row at the sender, is a message that was lost: `features.checker.messages` finds it.
 8. *With the sender's rights.* The sending role is kept in a column that nobody can write; a handler runs with the
    rights of that role, as its statements do, no matter who delivers. Values are parameters, never text of a statement.

What it does not survive: a node that has gone back in time (a restored backup, a standby that lacked something) has
forgotten what it acknowledged, here as with every other row.
*/

-- In the sender's transaction, with its rights. `before`: what it must wait for.
CREATE OR REPLACE FUNCTION balancer.send_message(
    sender text, sender_key text[], target text, target_key text[], message text, body jsonb,
    OUT id uuid, OUT role text, OUT before uuid[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine balancer.message_table;
    handler balancer.message_handler;
    missing text;
BEGIN
    SELECT * INTO mine FROM balancer.message_table t WHERE t.name = sender;
    SELECT * INTO handler FROM balancer.message_handler h
        WHERE h.target = send_message.target AND h.name = message AND h.sender = send_message.sender;
    IF mine.name IS NULL OR handler.name IS NULL THEN
        RAISE EXCEPTION '%', CASE WHEN mine.name IS NULL
                THEN format('table %s does not send messages', sender)
                ELSE format('table %s has no message %s', target, message) END
            USING ERRCODE = '{NOT_KNOWN}', HINT = 'balancer messages enable';
    END IF;
    SELECT string_agg(n, ', ') INTO missing FROM unnest(handler.needs) n WHERE NOT body ? n;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'the message % of table % needs a value for: %', message, target, missing
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    -- Numbers are given in the order of the commits.
    PERFORM pg_advisory_xact_lock(1835365235, hashtext(sender || sender_key::text));
    BEGIN
        EXECUTE format(
            'INSERT INTO %1$s (%2$s, message_number, message_target, message_key, message_name, message_body)'
            ' SELECT %3$s, coalesce(max(message_number), 0) + 1, $2, $3, $4, $5 FROM %1$s WHERE %4$s'
            ' RETURNING message_id, message_role', mine.outbox, mine.columns, mine.key, mine.matches)
            INTO id, role USING sender_key, target, target_key, message, body;
    EXCEPTION WHEN unique_violation THEN
        -- By a snapshot that is older than the last message of this key.
        RAISE EXCEPTION 'another transaction has sent a message from the same key meanwhile'
            USING ERRCODE = '40001';
    END;
    EXECUTE format(
        'SELECT array_agg(message_id) FROM %s WHERE %s AND message_state = ''pending'' AND message_target = $2'
        ' AND message_key = $3 AND message_id <> $4', mine.outbox, mine.matches)
        INTO before USING sender_key, target, target_key, id;
END $$;

-- At the target's owner, after balancer.hold: applied, refused (nothing was done), failed (it was given up before),
-- late (no valid ticket), foreign (it must be done by the role that sent it).
CREATE OR REPLACE FUNCTION balancer.deliver_message(
    target text, target_key text[], id uuid, message text, body jsonb, sender text, sender_key text[], role text,
    ticket_of text, ticket timestamptz, OUT outcome text, OUT reason text, OUT clock timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine balancer.message_table;
    handler balancer.message_handler;
    changed bigint;
BEGIN
    clock := clock_timestamp();
    IF role <> current_user THEN
        outcome := 'foreign';
        RETURN;
    END IF;
    IF ticket_of IS DISTINCT FROM (SELECT node FROM balancer.node)
        OR ticket IS NULL OR abs(extract(epoch FROM clock - ticket)) > extract(epoch FROM interval '{TICKET}')
    THEN
        outcome := 'late';
        RETURN;
    END IF;
    SELECT * INTO mine FROM balancer.message_table t WHERE t.name = target;
    SELECT * INTO handler FROM balancer.message_handler h
        WHERE h.target = deliver_message.target AND h.name = message AND h.sender = deliver_message.sender;
    IF mine.name IS NULL OR handler.name IS NULL THEN
        RAISE EXCEPTION 'this node does not know the message % of table %', message, target
            USING ERRCODE = '{NOT_KNOWN}', HINT = 'balancer messages enable';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    BEGIN
        EXECUTE format(
            'INSERT INTO %s (%s, message_id, message_outcome, message_name, message_sender, message_sender_key)'
            ' SELECT %s, $2, ''applied'', $3, $4, $5 ON CONFLICT DO NOTHING', mine.inbox, mine.columns, mine.key)
            USING target_key, id, message, sender, sender_key;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN
            EXECUTE format('SELECT message_outcome, message_reason FROM %s WHERE %s AND message_id = $2',
                           mine.inbox, mine.matches)
                INTO STRICT outcome, reason USING target_key, id;
            RETURN;
        END IF;
        PERFORM set_config('search_path', quote_ident(mine.schema) || ', pg_temp', true);
        EXECUTE handler.apply USING body, target_key;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN
            RAISE EXCEPTION 'it changes no row' USING ERRCODE = '{NO_ROW}';
        END IF;
        -- What is deferred belongs to this message, and to the rights that it has.
        SET CONSTRAINTS ALL IMMEDIATE;
        outcome := 'applied';
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR raise_exception
            OR with_check_option_violation OR SQLSTATE '{NO_ROW}' THEN
        GET STACKED DIAGNOSTICS reason = MESSAGE_TEXT;
        outcome := 'refused';
    END;
END $$;

-- At the sender's owner, after balancer.hold, once the inbox has the outcome. True: it was still to be done.
CREATE OR REPLACE FUNCTION balancer.settle_message(
    sender text, sender_key text[], id uuid, outcome text, reason text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine balancer.message_table;
    handler balancer.message_handler;
    body jsonb;
    goal text;
    message text;
    changed bigint;
BEGIN
    SELECT * INTO STRICT mine FROM balancer.message_table t WHERE t.name = sender;
    IF outcome = 'applied' THEN
        -- Nothing else is in this transaction. What a crash brings back is delivered once more, in vain.
        PERFORM set_config('synchronous_commit', 'off', true);
        EXECUTE format('DELETE FROM %s WHERE %s AND message_id = $2 AND message_state = ''pending''',
                       mine.outbox, mine.matches) USING sender_key, id;
        GET DIAGNOSTICS changed = ROW_COUNT;
        RETURN changed > 0;
    END IF;
    EXECUTE format(
        'UPDATE %s SET message_state = ''failed'', message_reason = $3 WHERE %s AND message_id = $2'
        ' AND message_state = ''pending'' RETURNING message_body, message_target, message_name',
        mine.outbox, mine.matches) INTO body, goal, message USING sender_key, id, reason;
    IF goal IS NULL THEN
        RETURN false;
    END IF;
    SELECT * INTO handler FROM balancer.message_handler h
        WHERE h.target = goal AND h.name = message AND h.sender = settle_message.sender;
    IF handler.name IS NULL THEN
        RAISE EXCEPTION 'this node does not know the message % of table %', message, goal
            USING ERRCODE = '{NOT_KNOWN}', HINT = 'balancer messages enable';
    END IF;
    IF handler.reverse IS NOT NULL THEN
        PERFORM set_config('search_path', quote_ident(mine.schema) || ', pg_temp', true);
        EXECUTE handler.reverse USING body, sender_key;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN
            RAISE EXCEPTION 'its reversal changes no row' USING ERRCODE = '{NO_ROW}';
        END IF;
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    RETURN true;
END $$;
