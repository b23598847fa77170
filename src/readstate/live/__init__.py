"""Live updates: announcements from the bus become frames for the devices of this instance.

A device keeps its own counts: a `message.new` with `counts` adds one, and the counts in any other event replace what
the device has. That is right only if device and service agree on which messages a count includes. So a user's frames
leave in one order, and every count is exact at its position in that order.

Announcements
    The bus delivers an announcement once its change is durable (`Live.on_announcements`). Live finds the connected
    users it concerns (`ConnectedUsers`), and either queues an event or sets a dirty mark. `message.new`,
    `channel.removed` and `sync.required` are queued and pushed at once. All that `message.new` says about counts is
    whether the message adds one, and the hot store answers that when the announcement arrives (`count_delta`). Where
    "one more" does not say everything (a cap, a preference, a ledger that is not loaded), it has `counts: false` and
    the counts follow. In a muted channel it counts, and the counts follow too.

Dirty marks
    Everything else that carries counts is only marked (`Dirty`). One task per user takes the marks and renders them
    from the hot store (`EventRenderer`). It renders again while the change numbers of the user or the rooms move, and
    queues the result without awaiting anything in between. Ten edits of a channel become one `unread.updated`. If a
    store is unavailable, the marks stay and are rendered a second later.

Cursors
    Every event carries a cursor (`resume`) which promises that everything up to it was sent before, to every device
    of the user on this instance. It moves only while the user is settled (see below); otherwise events repeat the old
    one. In a cluster an announcement may still be in flight from another process, so the cursor is one that was taken
    by looking at the state itself, or one that is at least 10 s old (`CursorHistory`).

Catching up
    A device that connects first subscribes and then looks: its user enters the channels, announcements for the device
    are gathered (`CatchingUp`), the end cursor is taken, and `CatchUp` renders what changed since the device's
    cursor. The device gets the missed events, then the gathered events, then the counts of everything that was
    marked. It gets `sync.required` instead if more than 1,000 events are missing, if the user was erased since, if
    the user left a channel during the lookup, or if the cursor belongs to another store.
    When the bus reports a gap, the devices of every connected user are held back and catch up in the same way, from
    the last certain cursor before the gap, eight users at a time, until it succeeds. If another gap occurs during a
    catch-up, the user catches up again. A handler that fails counts as a gap.

Receipts, stale counts, mutes
    `LiveReceipts` gathers pointer moves, looks up which of them others may see, and sends those. A device that
    catches up finds the receipts that the durable store has; `LateReceipts` looks again once the persister has stored
    what was acknowledged by then. Counts that were sent as `stale` are sent again once the hot store is fresh
    (`Doubts`), and their users catch up from shortly before the first of them. Mutes that expire have no
    announcement, so `Unmuting` has a timer for them.

Not settled yet: each notion, and the class that holds it

- `Dirty`: rooms and badge that changed and are not rendered yet; `UserSession.dirty` has it, and
  `UserSession.rendering` says that the render task has taken it.
- `UserSession.out`: encoded events that are queued and not pushed yet.
- `CatchingUp`: events and marks that arrived for a connection during its lookup, and whether a gap occurred in it.
- `UserSession.repair`: the task that catches up all devices of a user after a gap.
- `CursorHistory`: up to which cursor the devices certainly got everything.
- `UserSession.rendered_seq`: the messages that rendered counts may include although they are not announced here yet.
- `UserSession.sending`: deliveries that are not pushed yet, and so can't be proven by the device's next sign of life.
- `LiveReceipts`: pointer moves whose receipts are not sent yet; meanwhile cursors carry a time from before them.
- `LateReceipts`: users who caught up before the durable store had all acknowledged reads.
- `Doubts`: users who got stale counts.
- `PendingWrites` (services): changes of a user that the hot store shows and the log has not acknowledged.
- `UnannouncedWrites` (services): a batch of this process's message writer that the hot store shows and the bus has
  not announced.

A user is settled, and the cursor moves, when nothing is dirty, being rendered or catching up, and the user has no
pending write and no doubt (`Live._is_unsettled`), and there was no unannounced write when the cursor was taken.

Races

- A change during a lookup: the end cursor is taken before the lookup and after the subscription, so the lookup finds
  the change, or its announcement is gathered, or both. No cursor of the user moves before the device has both.
- A message in the hot store before its announcement: counts may include it, or show it as the latest without counting
  it, and then `message.new` arrives. In a cluster `rendered_seq` notices this, and the counts are rendered once more.
- A read in the hot store before the log has it: rendering waits for the user's pending writes, but only three times,
  because a user may read without a pause. If the log refuses the read, that is announced, and the counts follow.
- A user leaves a channel while it is rendered: its events are dropped, since `channel.removed` was sent already.
- Two devices connect at once: `CursorHistory` keeps the older of the two cursors.
- A device connects after a read was announced and before it is stored: `LateReceipts`.

Accepted errors

- At least once: after a reconnect or a gap a device may get events again. A `message.new` whose seq is not beyond the
  newest of its channel is a repeat; other events replace what the device has.
- A device that catches up gets the messages and the current state, not the states in between.
- A count may be off by one for as long as the second rendering takes, and a count that changed during each of five
  renderings is sent as the last one saw it; the announcement of the change corrects it.
- An announcement that arrives more than 10 s after the hot store shows its change, without a gap, may be behind a
  cursor that was given out. A device that reconnects with this cursor misses it until the room changes again.
- Only the newest 1,000 deliveries per user are tracked.
"""
