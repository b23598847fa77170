-- Announces a load of one user. ARGV[6]: a new ticket, ARGV[7]: how long it holds, in ms.
-- Returns the ticket of the load that is under way.
local loading = KEYS[7]
local known = call('LINDEX', loading, 0)
if known then return known end
call('RPUSH', loading, ARGV[6])
call('PEXPIRE', loading, ARGV[7])
return ARGV[6]
