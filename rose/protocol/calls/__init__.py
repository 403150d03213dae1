"""Every state transition as a call of a Lua script: its keys, its arguments and its reply.

A call knows no Redis client: `rose.transport` runs it. Any call may be repeated after a lost reply,
since it carries what makes a repeat harmless (job id, token index, entry id, take id).
"""

from rose.protocol.calls.announcement import ALIVE_S as ALIVE_S
from rose.protocol.calls.announcement import Announced as Announced
from rose.protocol.calls.announcement import Standing as Standing
from rose.protocol.calls.announcement import announce as announce
from rose.protocol.calls.announcement import announced as announced
from rose.protocol.calls.call import Arg as Arg
from rose.protocol.calls.call import Call as Call
from rose.protocol.calls.call import now_ms as now_ms
from rose.protocol.calls.cancellation import cancel as cancel
from rose.protocol.calls.cancellation import control_message as control_message
from rose.protocol.calls.cancellation import delete as delete
from rose.protocol.calls.cancellation import end_late as end_late
from rose.protocol.calls.dead_letters import dead_letter as dead_letter
from rose.protocol.calls.dead_letters import retry as retry
from rose.protocol.calls.intake import LISTENER_MS as LISTENER_MS
from rose.protocol.calls.intake import MAX_FETCH_BYTES as MAX_FETCH_BYTES
from rose.protocol.calls.intake import WAITING_MS as WAITING_MS
from rose.protocol.calls.intake import fetch as fetch
from rose.protocol.calls.intake import hand_on as hand_on
from rose.protocol.calls.intake import reclaim as reclaim
from rose.protocol.calls.leases import Lease as Lease
from rose.protocol.calls.leases import leave as leave
from rose.protocol.calls.leases import release as release
from rose.protocol.calls.leases import renew as renew
from rose.protocol.calls.lost_entries import Swept as Swept
from rose.protocol.calls.lost_entries import sweep as sweep
from rose.protocol.calls.lost_entries import swept as swept
from rose.protocol.calls.queue import create_groups as create_groups
from rose.protocol.calls.queue import elect as elect
from rose.protocol.calls.queue import forget as forget
from rose.protocol.calls.queue import oldest_waiting as oldest_waiting
from rose.protocol.calls.queue import queue_status as queue_status
from rose.protocol.calls.queue import room as room
from rose.protocol.calls.submission import QueueLimits as QueueLimits
from rose.protocol.calls.submission import Submission as Submission
from rose.protocol.calls.submission import refusals as refusals
from rose.protocol.calls.submission import submit as submit
from rose.protocol.calls.submission import submitted_id as submitted_id
from rose.protocol.calls.takes import NotTaken as NotTaken
from rose.protocol.calls.takes import OfOtherModel as OfOtherModel
from rose.protocol.calls.takes import Take as Take
from rose.protocol.calls.takes import Taken as Taken
from rose.protocol.calls.takes import new_take_id as new_take_id
from rose.protocol.calls.takes import take as take
from rose.protocol.calls.takes import taken as taken
from rose.protocol.calls.tenants import rename_tenant as rename_tenant
from rose.protocol.calls.tenants import set_tenant as set_tenant
from rose.protocol.calls.tenants import tenant_status as tenant_status
from rose.protocol.calls.token_log import Append as Append
from rose.protocol.calls.token_log import append as append
from rose.protocol.calls.token_log import outcomes as outcomes
