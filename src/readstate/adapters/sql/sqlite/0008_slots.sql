-- Generations of the hot store by slot: the number under which the state in these slots counts as loaded, and the run id
-- of the server that owned them when they got it. A slot whose owner is another one has lost its state.
CREATE TABLE slots (
    first INTEGER PRIMARY KEY,
    last INTEGER NOT NULL,
    number INTEGER NOT NULL,
    run TEXT NOT NULL
) STRICT, WITHOUT ROWID;
