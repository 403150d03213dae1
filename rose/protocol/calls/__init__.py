"""Every state transition as a call of a Lua script: its keys, its arguments and its reply.

A call knows no Redis client: `rose.transport` runs it. Any call may be repeated after a lost reply,
since it carries what makes a repeat harmless (job id, token index, entry id, take id).
"""

from rose.protocol.calls.jobs import Append as Append
from rose.protocol.calls.jobs import QueueLimits as QueueLimits
from rose.protocol.calls.jobs import Submission as Submission
from rose.protocol.calls.jobs import append as append
from rose.protocol.calls.jobs import cancel as cancel
from rose.protocol.calls.jobs import control_message as control_message
from rose.protocol.calls.jobs import delete as delete
from rose.protocol.calls.jobs import end_late as end_late
from rose.protocol.calls.jobs import outcomes as outcomes
from rose.protocol.calls.jobs import refusals as refusals
from rose.protocol.calls.jobs import submit as submit
from rose.protocol.calls.jobs import submitted_id as submitted_id
from rose.protocol.calls.queue import ALIVE_S as ALIVE_S
from rose.protocol.calls.queue import Announced as Announced
from rose.protocol.calls.queue import Standing as Standing
from rose.protocol.calls.queue import announce as announce
from rose.protocol.calls.queue import announced as announced
from rose.protocol.calls.queue import create_groups as create_groups
from rose.protocol.calls.queue import dead_letter as dead_letter
from rose.protocol.calls.queue import elect as elect
from rose.protocol.calls.queue import forget as forget
from rose.protocol.calls.queue import oldest_waiting as oldest_waiting
from rose.protocol.calls.queue import queue_status as queue_status
from rose.protocol.calls.queue import rename_tenant as rename_tenant
from rose.protocol.calls.queue import retry as retry
from rose.protocol.calls.queue import room as room
from rose.protocol.calls.queue import set_tenant as set_tenant
from rose.protocol.calls.queue import tenant_status as tenant_status
from rose.protocol.calls.takes import LISTENER_MS as LISTENER_MS
from rose.protocol.calls.takes import MAX_FETCH_BYTES as MAX_FETCH_BYTES
from rose.protocol.calls.takes import WAITING_MS as WAITING_MS
from rose.protocol.calls.takes import Lease as Lease
from rose.protocol.calls.takes import NotTaken as NotTaken
from rose.protocol.calls.takes import OfOtherModel as OfOtherModel
from rose.protocol.calls.takes import Placed as Placed
from rose.protocol.calls.takes import Swept as Swept
from rose.protocol.calls.takes import Take as Take
from rose.protocol.calls.takes import Taken as Taken
from rose.protocol.calls.takes import fetch as fetch
from rose.protocol.calls.takes import hand_on as hand_on
from rose.protocol.calls.takes import leave as leave
from rose.protocol.calls.takes import new_take_id as new_take_id
from rose.protocol.calls.takes import reclaim as reclaim
from rose.protocol.calls.takes import release as release
from rose.protocol.calls.takes import renew as renew
from rose.protocol.calls.takes import sweep as sweep
from rose.protocol.calls.takes import swept as swept
from rose.protocol.calls.takes import take as take
from rose.protocol.calls.takes import taken as taken
from rose.protocol.scripts import Arg as Arg
from rose.protocol.scripts import Call as Call
from rose.protocol.scripts import now_ms as now_ms
