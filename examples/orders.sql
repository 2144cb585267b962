CREATE TABLE orders (
    user_id bigint NOT NULL,
    id bigint NOT NULL,
    amount integer NOT NULL,
    PRIMARY KEY (user_id, id)
) PARTITION BY HASH (user_id);
