"""Presence across processes: devices in the hot store, each with the lease of the process that holds its connection.

Each process remembers what it has written itself. After a loss of the hot store it writes all of it again, within a
heartbeat. So no user is declared away in a generation that is younger than `settle_ms`. What only another process knew
is lost: if a channel was marked unread while a device had it open, messages in it are read at once again.

A process that dies leaves its entries behind, and a list of its users. When its lease is over, any other process
expires them. The function that removes a user's last entry returns the departure, with the unproven messages, to the
process that ran it. Unproven messages were sent to a device and may not have arrived. They stay in the hot store, and
the user stays on the list of the process that ran the function, until the durable store has them.

- `instances`: the leases of processes, and the list of users that each of them leaves behind
- `devices`: who is online, on which devices, with which channel open
- `departures`: connections that end, and users whose last device is gone
- `deliveries`: messages that were sent and are not proven to have arrived
- `presence`: all of it as `ValkeyPresence`, with its background task
"""

from .presence import ValkeyPresence

__all__ = ["ValkeyPresence"]
