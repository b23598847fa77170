"""Live updates: announcements from the bus become frames for the devices of this instance.

A device keeps its own counts: a `message.new` with `counts` adds one, and the counts in any other event replace what
the device has. That is right only if device and service agree on which messages a count includes. So a user's frames
leave in one order, and every count is exact at its position in that order.

Announcements (`updates.py`)
    The bus delivers an announcement once its change is durable (`Live.on_announcements`). Live finds the connected
    users it concerns (`ConnectedUsers`), and either queues an event or sets a dirty mark. `message.new`,
    `channel.removed` and `sync.required` are queued and pushed at once. All that `message.new` says about counts is
    whether the message adds one, and the hot store answers that when the announcement arrives (`count_delta`), in one
    question for all connected members. The answer does not come with the step that put the message into the hot store:
    the user may have read in between, and the device has that read's counts already. Adding one to them would be wrong,
    since the answer must be right at its position among the user's frames. Where "one more" does not say everything (a
    cap, a preference, a ledger that is not loaded: `LOOK`), `message.new` has `counts: false` and the counts follow. In
    a muted channel it counts, and the counts follow too.

Dirty marks (`sending.py`, `rendering.py`)
    Everything else that carries counts is only marked (`Dirty`). One task per user takes the marks and renders them
    from the hot store (`EventRenderer`). It renders again while the change numbers of the user or the rooms move, and
    queues the result without awaiting anything in between. Ten edits of a channel become one `unread.updated`. If a
    store is unavailable, the marks stay and are rendered a second later. A read by the user's only connection is not
    marked: its answer has the counts (`EventRenderer.unread`), exact at its position, and nobody else is to be told.

Cursors (`cursors.py`)
    Every event carries a cursor (`resume`) which promises that everything up to it was sent before, to every device
    of the user on this instance. It moves only while the user is settled (see below); otherwise events repeat the old
    one. In a cluster an announcement may still be in flight from another process, so the cursor is one that was taken
    by looking at the state itself, or one that is at least 10 s old (`CursorHistory`).

Catching up (`devices.py`, `catch_up.py`)
    A device that connects first subscribes and then looks: its user enters the channels, announcements for the device
    are gathered (`CatchingUp`), the end cursor is taken, and `CatchUp` renders what changed since the device's
    cursor. The device gets the missed events, then the gathered events, then the counts of everything that was
    marked. It gets `sync.required` instead if more than 1,000 events are missing, if the user was erased since, if
    the user left a channel during the lookup, or if its cursor is invalid, of another store or ahead of this one.
    When the bus reports a gap, the devices of every connected user are held back and catch up in the same way, from
    the last certain cursor before the gap, eight users at a time, until it succeeds. If another gap occurs during a
    catch-up, the user catches up again. A handler that fails counts as a gap.

Receipts, late corrections, mutes
    `LiveReceipts` gathers pointer moves, looks up which of them others may see, and sends those; of several moves of
    one pointer only the last. The first is looked up at once. If more moves came during its lookup, the next lookup is
    20 ms later (`LiveTimings.receipts`), so that the receipts of many readers leave together, and a `ping` that comes
    meanwhile is answered after them. `LateCorrections` follows what the stores did not have yet when it was sent.
    Counts that were sent as `stale` are sent again once the hot store is fresh, and their users catch up from shortly
    before the first of them. A device that catches up finds the receipts that the durable store has; the others are
    sent once the persister has stored what was acknowledged by then. Mutes that expire have no announcement, so
    `Unmuting` has a timer for them.

Not settled yet

- Dirty marks (`UserSession.dirty`): rooms and badge that changed for a user and are not rendered yet; `rendering` is
  set while the render task has taken them.
- Queued events (`UserSession.out`): encoded and not pushed yet.
- `CatchingUp`: what arrives for a connection while its missed events are looked up.
- `CursorHistory`: the cursors up to which all devices of a user certainly got everything.
- `UserSession.rendered_seq`: the newest message that the last counts of a channel may include, announced or not.
- `LiveReceipts`: pointer moves whose receipts are not sent yet; meanwhile cursors carry a time from before them.
- `LateCorrections`: users who got stale counts, or caught up before all acknowledged reads were stored.
- `PendingWrites` (services): changes of a user that the hot store shows and the log has not acknowledged.
- `UnannouncedWrites` (services): a batch of this process's message writer that the hot store shows and the bus has
  not announced.

A user is settled, and the cursor moves, when nothing is dirty, being rendered or catching up, the user has no pending
write and no stale counts (`EventSender._is_settled`), and there was no unannounced write when the cursor was taken.

Races

- A change during a lookup: the end cursor is taken before the lookup and after the subscription, so the lookup finds
  the change, or its announcement is gathered, or both. No cursor of the user moves before the device has both.
- A message in the hot store before its announcement: counts may include it, or show it as the latest without counting
  it, and then `message.new` arrives. In a cluster `rendered_seq` notices this, and the counts are rendered once more.
- A read in the hot store before the log has it: rendering waits for the user's pending writes, but only three times,
  because a user may read without a pause. If the log refuses the read, that is announced, and the counts follow.
- A user leaves a channel while it is rendered: its events are dropped, since `channel.removed` was sent already.
- Two devices connect at once: `CursorHistory` keeps the older of the two cursors.
- A device connects after a read was announced and before it is stored: `LateCorrections` sends the receipt.

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
