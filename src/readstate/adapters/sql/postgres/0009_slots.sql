-- Generations of the hot store by slot: the number under which the state in these slots counts as loaded, and the run id
-- of the server that owned them when they got it. A slot whose owner is another one has lost its state.
CREATE TABLE slots (
    first integer PRIMARY KEY,
    last integer NOT NULL,
    number bigint NOT NULL,
    run text COLLATE "C" NOT NULL
);
