"""Every limit and every default duration, with its relation to the others checked at import.

Units: `_s` seconds, `_bytes` bytes, `_count` pieces, `_steps` steps.
"""

from __future__ import annotations

# --- regroup --------------------------------------------------------------------------------------
# After a first fault, the coordinator waits this long for others of the same event.
COMPANION_WAIT_S = 0.003
# If a collective failed and no process is known to be dead, the coordinator waits this long for a
# report on the culprit.
COLLATERAL_WAIT_S = 0.05
# A survivor that is blocked in a collective has to leave it by then. Measured: 1-2 ms after it is
# woken.
LEAVE_DEADLINE_S = 0.5
# Deadlines grow by this for each rank, because the coordinator sends and receives one message after
# the other (benchmarks/channel.py: 0.02-0.04 ms).
RANK_HEARD_S = 0.00005
LEAVE_LAST_S = 10.0  # the same deadline for a survivor that alone holds the replicated state
LEAVE_STEPS = 3.0  # a survivor that is computing gets this many of its learned step times instead
# Survivors and replacements have to join a new generation by then. State moves between them through
# memory: at 3 GB/s a donor hands over 90 GB in this time.
REGROUP_DEADLINE_S = 30.0
# From the start of a process to its first step, imports and model included.
BOOT_DEADLINE_S = 1_800.0
# Places at which a survivor can leave a backward pass. Each of them adds about 2 us to every
# backward.
BACKWARD_EXITS_COUNT = 16
GROUP_TIMEOUT_S = 1_800.0  # torch's own time-out for a collective; outlast never waits for it
STORE_DEADLINE_S = 20.0  # a store host has to report its port by then
STORE_TRY_S = 1.0  # torch's client of the store gives up one connection attempt after about this
STORE_LOOK_S = 0.02  # how often a store that takes no connection is tried again
# A store that has listened before is taken for lost if it refuses connections for this long.
STORE_REFUSED_S = 1.0
# Deadline for connecting a process group once all ranks are there. It takes milliseconds.
GROUP_CONNECT_S = 10.0
# Deadline for aborting the communicators of an old generation; it takes milliseconds.
NCCL_ABORT_S = 10.0
# The threads of an old process group are joined this long after the group is gone. Training does
# not wait for that.
GROUP_LET_GO_S = 0.5
# If something else still refers to such a group, it is checked again, at most this many times. Each
# wait is twice as long as the one before.
GROUP_LET_GO_LOOKS_COUNT = 7
# A process waits for the threads of its gloo groups to finish their last work. It checks this
# often, and at most this many times.
RUN_LOOP_LOOK_S = 0.001
RUN_LOOP_LOOKS_COUNT = 1000
THREADS_LOOK_S = 0.1  # how often a rank that cannot start a thread tries again
# A process that cannot start its listener thread for this long exits, and is started again.
THREAD_WAIT_S = 5.0
# Before its first step, a run ends if a rank cannot start the threads of its group for this long.
FIRST_THREADS_WAIT_S = 60.0
# A rank that waits in the store for its group has left it this long after its connection was cut.
STORE_CUT_S = 0.1
# A rank that waits for a vote is woken at once. It also checks this often, in case the wake-up came
# too early.
BALLOT_LOOK_S = 0.01
BALLOT_MAX_BYTES = 512
# Once the last vote between nodes has passed, the peers of a rank have taken what it sent by then.
# Otherwise one of them is lost.
VOTE_SENT_S = 5.0

# --- detection ------------------------------------------------------------------------------------
TICK_S = 0.05  # how often the agent reads the beacons
LATE_TICK_S = 0.15  # a tick later than this moves the deadlines by its lateness (trap 19)
DEADLINE_FACTOR = 5.0  # a phase is overdue after this many times its learned duration
STEP_FLOOR_S = 1.0  # the shortest deadline of a phase of a step
# The shortest deadline for a batch. Loaders pause on busy machines, and a dead one is reported at
# once.
DATA_FLOOR_S = 10.0
STOPPED_FLOOR_S = 0.5  # a process that the kernel reports as stopped (SIGSTOP) is given this long
STEP_CEILING_S = 600.0
# Nothing is learned from these steps, because they compile, warm up and allocate.
FIRST_STEPS_COUNT = 3
FIRST_STEPS_DEADLINE_S = 600.0  # their deadline, until the run has shown how long they take
# After that, the shortest deadline of the first steps of a later process.
FIRST_STEPS_FLOOR_S = 10.0
CHECKPOINT_DEADLINE_S = 1_800.0
EVALUATION_DEADLINE_S = 3_600.0
BETWEEN_DEADLINE_S = 1_800.0
# A peer is cut off if the oldest data that it did not acknowledge was sent again this many times.
CUT_RETRIES_COUNT = 2
# If the listener of a worker does not answer by then, the process holds the GIL or is stopped.
PING_DEADLINE_S = 0.2
# Time in which a hung rank was ready to run but had no processor is excused, up to this.
STARVED_MAX_S = 60.0
# If the script of a rank is over but its process goes on, this is reported after this long, and
# again each time twice as much has passed.
LINGER_S = 10.0
# If a rank has left the script within a step (sys.exit), the others get this long to do the same.
# Otherwise the rank is replaced.
LEFT_IN_STEP_S = 15.0
# A process that lingers has to say by then where it is. Otherwise it is examined from outside.
LINGER_ANSWER_S = 1.0
INQUIRY_DEADLINE_S = 0.6  # all agents have to answer an inquiry by then, pings included
SNAPSHOT_FLOOR_S = 5.0
# If all others wait for a rank that is still within its deadline, all are asked again this often.
AWAITED_LOOK_S = 10.0

# --- several nodes --------------------------------------------------------------------------------
BEAT_S = 1.0  # an agent asks this often for its lease to be renewed
LEASE_BEATS = 6  # a lease lasts this many times BEAT_S
CLOCK_DRIFT_MAX = 0.01  # the clocks of two nodes differ by at most this share of the time
LEASE_KILL_S = 1.0  # an agent whose lease has run out has killed its processes by then
# A message of one worker waits this long for the same message of the other workers of the node.
BATCH_WAIT_S = 0.002
OFFSET_SAMPLES_COUNT = 16  # number of messages from which the difference of two clocks is estimated
SILENT_LOOK_S = 0.5  # how often the coordinator looks for an awaited rank that it does not hear
# After the connection of a launcher has closed, the coordinator looks for it this often, until its
# lease is over.
LAUNCHER_LOOK_S = 0.05
# It has ended if nobody has listened at its port for this long. The kernel has killed its processes
# by then.
LAUNCHER_GONE_S = 0.2
RECONNECT_S = 0.5  # how often an agent without a connection tries to connect
# The first pause of these tries. Each one is twice as long as the one before, up to RECONNECT_S.
RECONNECT_FIRST_S = 0.02
# An agent that was in the run ends it for its node if it cannot reach a coordinator for this long.
COORDINATOR_WAIT_S = 60.0
# Ports of a launcher: for images, votes, agents after a takeover, and two store hosts.
PORTS_LEAST_COUNT = 5
# A node that does not reach the coordinator at the start reports it after the first time, and then
# each time that the second one has passed.
TRIES_TOLD_FIRST_S = 10.0
TRIES_TOLD_S = 60.0
# After this many wrong answers in a row at the start, it is not `outlast run` that listens there.
STRANGE_ANSWERS_COUNT = 3
# The lease of an agent, in runs with up to LEASE_NODES_COUNT nodes. Packets that get lost for 0.3 s
# silence a TCP connection for 0.75 s: the kernel sends again after 0.2 s, and then after another
# 0.4 s. A lease of 0.5 s would be over by then (benchmarks/results/nodes.md).
LEASE_S = 1.0
LEASE_NODES_COUNT = 64  # with more nodes, leases are longer, so that they cost less
VOTERS_COUNT = 5  # number of agents that keep copies of the ledger, and may take over the run
VOTERS_LEAST = 3  # with fewer nodes, no node can take over
MISSED_SHARE = 0.6  # a coordinator that is silent for this share of a lease is missing
CLAIM_STAGGER_S = 0.1  # pause between the attempts of two voters to take over
VOTERS_RENEW_S = 2.0  # voters are named again this long after one was lost or a node has joined
# For this many leases after its vote, a voter votes for no other candidate, so that this one can
# begin.
CLAIM_LEASES = 2
# Number of records that wait for a voter that does not acknowledge them, at most.
COPIES_QUEUE_MAX_COUNT = 50_000
IMAGE_READERS_COUNT = 64  # number of readers to which an agent serves its image at once
IMAGE_PIECE_BYTES = 1 << 20  # bytes of an image that are sent before the loop does anything else
IMAGE_QUIET_S = 10.0  # a node that serves no byte of an image for this long counts as unreachable
IMAGE_LOOK_S = 0.1  # how often a reader of an image checks whether its generation is over
PEER_COPIES_MAX_COUNT = 64  # copies of one image, each on another node; a plan names all of them
PARITY_PARTS_MAX_COUNT = 16  # parts of an image; a plan names all sources of all parts
PARITY_ROWS_MAX_COUNT = 2  # sums of the same parts, and losses that they survive
COPY_ROOM_BYTES = 32 << 20  # memory for a copy that is allocated before the loop does anything else
COPY_PRIORITY = 2  # TC_PRIO_BULK of linux/pkt_sched.h; no right is needed for it
COPY_LOOK_S = 0.02  # how often a rank that waits for its copy checks whether its generation is over
END_WAIT_S = 5.0  # at the end of a run, the other nodes have ended their processes by then
LIVES_TOLD_S = 1.0  # how often an agent reports how its workers have spent their time
# The run waits this long for nodes that were asked for. Then it begins on those that are there, if
# they have room.
ENROL_WAIT_S = 600.0
# The run waits this long if a lost rank finds no node with room, or if nodes cannot reach each
# other.
NODE_WAIT_S = 1_800.0
# If a group could not be formed across a link, the next try is this much later. Each pause is twice
# as long as the one before, up to LINK_RETRY_MAX_S.
LINK_RETRY_S = 1.0
LINK_RETRY_MAX_S = 30.0  # the longest of these pauses
# A node is given up for a link that stays cut for this long, if its ranks have room on other nodes.
# The time is longer than a link flap. After a topology change a switch may forward nothing for up
# to 50 s (spanning tree). TCP doubles its pause after each try, so it may take 50 s more to send
# again.
CUT_FOR_GOOD_S = 120.0
# Before a group is connected, one rank of each node waits this long for answers of the other nodes.
# The kernel sends the first packet of a connection again after 1 s and after 3 s. So three packets
# have to be lost before a node counts as silent.
LINK_PROBE_S = 3.5
LINK_PROBE_LOOK_S = 0.05  # how often that rank checks whether its generation is over
LINK_PROBE_NODES_COUNT = 256  # nodes that one rank asks, at most
LINK_PROBE_RANKS_COUNT = 1_024  # with more, no node is asked: each rank reads all addresses
CONTROL_WAIT_S = 5.0  # a connection to the control socket without a request is closed after this
CONTROL_CALLERS_COUNT = 16  # connections to the control socket at once; more are refused
CONTROL_REASON_CHARS = 500  # length of the reason that a person gives, at most
# While one node hands a run over to another one, a request waits this long for the new leader.
CONTROL_LEADER_S = 10.0
CONTROL_GONE_S = 20.0  # after a run has stopped, its launcher has ended by then
LISTENER_WAIT_S = 10.0  # a connection that has not proven which node it is from by then is closed
LISTENER_STRANGERS_COUNT = 256  # such connections at once; others wait in the kernel's queue
# Descriptors of the coordinator's process besides its connections: ledger, logs, store.
LISTENER_FILES_COUNT = 256
# After this much silence the kernel probes a connection, because a node that lost its power closes
# nothing.
LISTENER_KEEPALIVE_S = 60.0

# --- budgets --------------------------------------------------------------------------------------
# If the same step fails this often with all processes alive, a more expensive rung is taken.
REPEATS_PER_STEP_COUNT = 3
# If a rank's own code raises this often in one phase, the script ends by the error. After a restart
# of all ranks the phase would be left out, so a restart must not come first.
PHASE_ERRORS_COUNT = 3
SETUP_FAULTS_COUNT = 2  # interruptions that are allowed before the first commit of a run
# The budget of losses that are repaired by replacing ranks. A loss of several ranks at once counts
# as one.
RESPAWNS_COUNT = 16
# With 0, each newly committed step gives the whole budget back. So kills cost a run that makes
# progress time, but do not end it.
RESPAWN_REFILL_STEPS = 0
RESTARTS_COUNT = 3  # the budget of whole restarts
REFILL_STEPS = 10  # this many newly committed steps give one restart back
# More interruptions than this at one step, of any kind, are a crash loop. The count ends when the
# step is executed, even if it was executed before.
SAME_STEP_FAULTS_COUNT = 5
# So are more interruptions than this, at any steps, in a run that executes old steps and commits no
# new one.
STANDSTILL_FAULTS_COUNT = 20
# Kills from outside say nothing about the script. They end a run only if it commits no step during
# more than STRIKES_COUNT of them (SETUP_STRIKES_COUNT before its first step), and for at least
# STRIKES_STANDSTILL_S.
STRIKES_COUNT = 20
SETUP_STRIKES_COUNT = 5
STRIKES_STANDSTILL_S = 30.0
# After more than STRIKES_COUNT of them, each new start waits this long, because processes that are
# started among such kills are killed too.
STRIKES_PAUSE_S = 0.25
# The newest interruptions that are remembered for verdicts that come late. The ledger has all.
INTERRUPTIONS_KNOWN_COUNT = 1_000

# A drain that something interrupts is tried this many times. After that, ranks stay on the node.
DRAIN_TRIES_COUNT = 3
# Before ranks of sharded state leave a node, their images have to reach another one. All ranks
# stand still for this long at most.
IMAGES_MOVE_S = 120.0
# A notice that a node is taken away often comes 30 s before. Ranks of sharded state that have not
# left the node by then stay, and the run stops with a last checkpoint.
NOTICE_DRAIN_S = 15.0

# --- spares ---------------------------------------------------------------------------------------
SPARE_PLAIN_WAIT_S = 5.0  # a script without a call of outlast.join by then gets warm spares
SPARE_FAILURES_COUNT = 3  # no more spares are made after this many ended before they parked
SPARE_REFILL_DELAY_S = 1.0  # a used spare is replaced this long after training goes on

# --- open files -----------------------------------------------------------------------------------
# Measured: a launcher has 31, and 10 for each worker or spare; a worker has 16 to 19 of its own. A
# worker that is being replaced and its successor are there at once.
RUN_FILES_COUNT = 64
WORKER_FILES_COUNT = 16

# --- processes ------------------------------------------------------------------------------------
TERM_GRACE_S = 10.0  # from SIGTERM to SIGKILL at the end of a run
# From SIGKILL to the kernel's report that the process is gone. Giving back tens of gigabytes takes
# seconds.
KILL_DEADLINE_S = 60.0
DOMAIN_MAX_CHARACTERS = 200  # of the name of a failure domain
WORKERS_MAX_COUNT = 256  # workers on one node
# Each coordinator has its own range of worker numbers, so that no two give the same one.
WORKERS_PER_EPOCH_COUNT = 1_000_000
SIGINT_EXIT_CODE = 130  # exit code of a run that was ended by Ctrl-C
ORPHAN_EXIT_CODE = 113  # exit code of a worker whose agent is gone
ZYGOTE_BOOT_DEADLINE_S = 120.0
# If the zygote does not answer a request for this long, it is taken for lost. Time in which it had
# no processor does not count.
ZYGOTE_FORK_DEADLINE_S = 10.0
# While it owes an answer, the kernel is asked this often whether it has a processor.
STARVING_LOOK_S = 1.0
# After this many losses without a fork in between, workers are spawned instead.
ZYGOTE_LOSSES_COUNT = 3
HELPER_LOOK_S = 0.1  # how often the zygote and the store hosts are checked
HELPER_STOPPED_S = 0.4  # a helper that the kernel holds stopped for this long is replaced
HELPER_ASK_S = 1.0  # an idle helper is asked again this long after its last answer
# An idle helper that had a processor for this long and does not answer is replaced.
HELPER_ANSWER_S = 2.0
# A process that could not be started is tried again after this. Each pause is twice as long as the
# one before, up to START_RETRY_MAX_S.
START_RETRY_S = 0.25
START_RETRY_MAX_S = 5.0  # the longest of these pauses
START_GIVE_UP_S = 1_500.0  # no more tries after this, because others wait for the process
FIRST_STARTS_COUNT = 4  # nor after this many tries, if no process of the run has ever started
START_REPORT_S = 30.0  # how often a process that still cannot be started is reported
FORKS_IN_FLIGHT_COUNT = 8  # unanswered requests to the zygote; others wait in the agent
HOUSEKEEPING_S = 0.25  # dead processes are reaped this long after their end was seen
# A forked worker waits this long for the launcher to become its parent. That takes long only if the
# process between them has no processor.
ADOPTION_DEADLINE_S = 60.0
# A SIGKILL this soon after the kernel has counted an OOM kill is taken for that kill.
OOM_WINDOW_S = 10.0
OOM_LOOK_S = 2.0  # how often the kernel's counters are read; they are also read at each death

# --- messages -------------------------------------------------------------------------------------
MESSAGE_MAX_BYTES = 1 << 20
TRACEBACK_MAX_BYTES = 64 << 10  # of a traceback in a message
CHANNEL_BUFFER_MAX_BYTES = 8 << 20  # unsent bytes to one peer
CHANNEL_READ_BYTES = 64 << 10
# Python objects that a message to an agent, and one from it, occupy until they are acknowledged.
OBJECTS_PER_AGENT_COUNT = 16
LOOP_CROWD_COUNT = 256  # ready descriptors that a loop serves in one sorted batch

# --- input ----------------------------------------------------------------------------------------
GIVEN_FILE_MAX_BYTES = 1 << 20  # size of a file that a command line names and that is read whole
GIVEN_LINE_MAX_BYTES = 64 << 10  # length of a line of a file that is read line by line

# --- logs -----------------------------------------------------------------------------------------
LOG_READ_BYTES = 64 << 10
LOG_READ_LITTLE_BYTES = 256  # read of a worker's output, if there is no memory for more
LOG_LINE_MAX_BYTES = 64 << 10  # a longer line is printed in pieces
LOG_PARTIAL_S = 0.2  # an unfinished line is shown after this long
LOG_TRACEBACK_QUIET_S = 0.3  # a traceback is shown once its stream was quiet for this long
LOG_TRACEBACK_MAX_S = 2.0  # and never later than this after its first line
LOG_TRACEBACK_MAX_BYTES = 64 << 10  # of a traceback that is held back until it ends
LOG_TRACEBACKS_COUNT = 32  # newest different tracebacks that a launcher shows once only
LOG_FOLDERS_COUNT = 300  # newest workers of a node whose logs are named in `outlast status`
LOG_FOLDER_MAX_BYTES = 512  # a longer path is not named
LOG_TAIL_LINES = 200  # last lines of each worker's stderr that are kept for the verdict
# Bytes that are read of the output that a dead worker left in its pipes.
LOG_DRAIN_MAX_BYTES = 4 << 20

# --- console --------------------------------------------------------------------------------------
CONSOLE_BUFFER_BYTES = 1 << 20  # output that waits for the console; lines beyond that are left out
PAGE_SENT = "sent"  # printed by the process that sends a page, once the page has arrived
CONSOLE_LINGER_S = 2.0  # the end does not wait for a console that takes nothing for this long

# --- vault ----------------------------------------------------------------------------------------
CHECKSUM_BLOCK_BYTES = 256 << 10
SLOTS_COUNT = 2
TWINS_COUNT = 8  # of the ranks that hold the same shards, at most this many are twins of each other
VAULT_SPARE_BYTES = 16 << 20  # room in /dev/shm that is left for other programs
# A new run reports the vaults of dead runs if they are larger together.
LEFT_VAULTS_TOLD_BYTES = 100_000_000
VAULT_STALE_S = 86_400.0  # age at which the vault of a dead run is removed: a day
KEEP_SHARE = 0.005  # share of the time that `--keep vault:auto` may cost
KEEP_LEAST_S = 0.1  # the shortest time between two copies of the state in the vault
TENSOR_HEADER_BYTES = 256  # estimate of a tensor's entry in the header of an image, with alignment
STATE_TEXT_BYTES = 4 << 10  # room by which the text of a state may grow from step to step
SHAPES_LOOK_STEPS = 16  # steps between two checks of the shapes of parameters and optimizer state
WATCH_BYTES = 128 << 10  # replicated state that is read in one look
WATCH_TENSORS_COUNT = 16  # tensors that are read in one look
# Steps between two such looks. One takes about 0.1 ms, and on a device it waits for the device.
WATCH_EVERY_STEPS = 8
WATCH_REFRESH_STEPS = 16  # steps after which the list of things to look at is made again
# A loader's worker that was killed has ended this long after its connection is gone.
LOADER_END_S = 0.2
LOG_ENTRIES_KEPT_COUNT = 500  # newest entries of Trainer's log_history that are kept with each step
LOADER_POSITION_BYTES = 256 << 10  # room for the position of a loader that keeps state of its own
IMAGE_ALIGN_BYTES = 64  # tensors begin at a multiple of this in an image
IMAGE_HEADER_MAX_BYTES = 100_000_000  # safetensors refuses longer headers
# Room in the header of an image for metadata that changes from step to step.
METADATA_RESERVE_BYTES = 1 << 10

# --- checkpoints ----------------------------------------------------------------------------------
# With `--keep disk:auto`, the first checkpoint comes after this much training. It shows the cost.
SAVE_FIRST_S = 10.0
SAVE_AGAIN_S = 60.0  # with `--keep disk:auto`, the time after a checkpoint that failed
# The bounds of the interval between two checkpoints, however little or much a checkpoint costs.
SAVE_LEAST_S, SAVE_MOST_S = 10.0, 86_400.0
# The ledger records a new interval if it differs from the recorded one by more than this share.
SAVE_CHANGE_SHARE = 0.1
PRUNE_WAIT_S = 60.0  # at its end, a run waits this long for older checkpoints to be removed
CHECKPOINTS_KEPT_COUNT = 2  # checkpoints in the folder of a run; the last good one is never removed
MANIFEST_MAX_BYTES = 64 << 20  # about 500,000 files; a longer manifest is not read
RECORD_MAX_BYTES = 1 << 30  # about five million chunks of tensors
# Written bytes of a checkpoint after which the disk is told to begin writing.
WRITEBACK_BYTES = 16 << 20
READ_BLOCK_BYTES = 2 << 20  # bytes of a checkpoint that are read and summed at once
# Orders that the process of a node that writes captured images to the disk carries out at once.
WRITERS_COUNT = 2
DIRECT_ALIGN_BYTES = 4096  # what direct writes to a disk have to be a multiple of
DIRECT_BLOCK_BYTES = 8 << 20  # bytes of an image that are written at once
SYNC_EVERY_BYTES = 64 << 20  # bytes of an image in the kernel's cache, after which it is synced
WRITER_MOVED_S = 0.25  # at least between two of its reports that bytes were written
# It is replaced if it does not answer, or writes nothing though it has an order, for this long.
WRITER_SILENT_S = 120.0
WRITER_AGAIN_S = 0.5  # the first pause before it is started again; later ones are longer
WRITER_BACK_S = 5.0  # a rank waits this long for it to come back, and then writes its image itself
# A rank gives up a save if nothing of the save before was written for this long.
SAVE_STUCK_S = 30.0
# Replicated state is split among the ranks in shares of at least this size. Smaller tensors are not
# cut.
SPLIT_LEAST_BYTES = 64 << 10

# --- object storage -------------------------------------------------------------------------------
OBJECT_PART_BYTES = 16 << 20  # bytes of an uploaded file in one request; S3 takes 5 MiB or more
# Parts of one file. S3 takes 10,000, so the parts of a larger file are larger.
OBJECT_PARTS_MAX_COUNT = 9_000
OBJECT_PARTS_AT_ONCE_COUNT = 4
UPLOAD_LOOK_S = 1.0  # how often the uploader checks whether a checkpoint is finished
UPLOAD_TOLD_S = 1.0  # how often it reports how many bytes are on their way
# After a failed upload the next try begins after this. Each pause is twice as long as the one
# before, up to UPLOAD_AGAIN_S.
UPLOAD_AGAIN_FIRST_S = 1.0
UPLOAD_AGAIN_S = 300.0  # the longest of these pauses
UPLOAD_LAST_TRIES_COUNT = 3  # tries for the newest checkpoint after the end of the run
# At the end of a run, an upload without news for this long is given up. One request may be tried
# for as long as `BESIDE_TRAINING` of runtime/objects says. So an upload that still goes on may be
# given up if its server is silent.
UPLOAD_SILENT_S = 60.0
UPLOADER_AGAIN_S = 60.0  # the longest pause before an uploader that died is started again
DOWNLOAD_TRIES_COUNT = 3  # tries for a checkpoint at the start of a run, if bytes arrive damaged

# --- ledger ---------------------------------------------------------------------------------------
LEDGER_FLUSH_S = 1.0
# At the end of a run, a copy of the ledger that is being made is waited for this long.
LEDGER_COPY_S = 30.0
STATUS_EVERY_S = 60.0  # how often the status line is printed if the output is not a terminal
# A flush that fails is reported after this many failures in a row, because a lock may be held for a
# moment.
LEDGER_TRIES_COUNT = 3

EVIDENCE_BUDGET_S = 0.02  # time for which a recovery waits for evidence to be read, in all
STACKS_SIGNAL = 42  # a real-time signal that nothing uses by default
# A recovery also waits this long for a hung process to write down its stacks. The process does so
# within 2 ms after it gets a processor. On a busy machine that takes some tens of ms. It took a
# second to detect its hang.
STACKS_WAIT_S = 0.05
STACKS_FRESH_S = 30.0  # older stacks belong to an earlier alarm
# On several nodes, evidence is sent in messages with this many bytes of it. Others get their turn
# between two of them.
EVIDENCE_PIECE_BYTES = 64 << 10
EVIDENCE_SENT_FILE_MAX_BYTES = 16 << 20  # size of one file of evidence that a node sends
# The number of files of one node about one interruption, and their size in all.
EVIDENCE_NODE_FILES_COUNT = 2_048
EVIDENCE_NODE_MAX_BYTES = 64 << 20
# Nodes that are asked for evidence besides those where it happened.
EVIDENCE_NODES_COUNT = 64
EVIDENCE_NODES_AT_ONCE_COUNT = 4  # nodes of which pieces are asked for at once
EVIDENCE_AGAIN_S = 1.0  # a node that has not answered is asked again after this
# The verdict does not wait for a node that is silent for this long while training goes on.
EVIDENCE_SILENT_S = 10.0
EVIDENCE_GATHER_S = 60.0  # nor for any node for longer than this
EVIDENCE_LAST_S = 5.0  # the same at the end of a run
EVIDENCE_KEPT_COUNT = 32  # newest interruptions of which a node keeps its own evidence
# The end of the kernel's log that is secured, and how long before the fault it begins.
KERNEL_LOG_TAIL_BYTES = 64 << 10
KERNEL_LOG_BEFORE_S = 60.0
DIAGNOSIS_S = 60.0  # time for finding a verdict
LAST_DIAGNOSIS_S = 15.0  # the same at the end of a run
# A dump of this many entries takes some ms. That of torch's default takes four times as long.
FLIGHT_RECORDER_ENTRIES = 512
# For a test connection to the own address before a run begins, and for one try of an agent.
CONNECT_TRY_S = 5.0  # deadline of one attempt to connect to another process
CARD_MAX_BYTES = 1 << 20  # size of a run.json
RUN_RANKS_MAX_COUNT = 65_536  # ranks in one ledger; a ledger with more is damaged
LEDGER_VERSION = 4
LEDGER_OLDEST_VERSION = 1  # the oldest version that is read; it is upgraded when a run is resumed
CURVES_MAX_COUNT = 8  # logged values of a script that are kept over time
LEDGER_MERGE_S = 60.0  # how often old buckets of steps are merged
# (age, width) in seconds, oldest first: buckets of steps from this age on are this long.
STEP_BUCKET_LEVELS = ((86_400.0, 1_800.0), (3_600.0, 60.0))
LEDGER_QUEUE_MAX_COUNT = 20_000  # records that are kept in memory while the disk takes none
LOCK_PATIENCE_S = 0.2  # a launcher tries a lock for this long, because readers hold it for a moment

# --- evidence -------------------------------------------------------------------------------------
EVIDENCE_HEAD_BYTES = 8 << 10  # bytes of a file from which its kind is found
EVIDENCE_FILES_MAX_COUNT = 1_000_000  # 16,384 ranks with dumps, logs and stacks have 100,000 files
# Depth of archives within archives. A compressed tar is one archive.
EVIDENCE_NESTING_MAX_COUNT = 4
EVIDENCE_UNPACKED_MAX_BYTES = 64 << 30  # of all archives together
# The ratio of unpacked to packed bytes. It counts after EVIDENCE_RATIO_FREE_BYTES were unpacked.
# Deflate reaches 1,032.
EVIDENCE_RATIO_MAX = 200
EVIDENCE_RATIO_FREE_BYTES = 256 << 20
# Room that is left free on the disk where archives are unpacked.
EVIDENCE_DISK_SPARE_BYTES = 1 << 30
# The list of members at the end of a zip file, which is read into memory.
EVIDENCE_DIRECTORY_MAX_BYTES = 64 << 20
EVIDENCE_TAR_NAME_MAX_BYTES = 64 << 10
EVIDENCE_XZ_MEMORY_BYTES = 512 << 20  # xz -9 needs 65 MB
EVIDENCE_READ_BYTES = 1 << 20
EVIDENCE_LINE_MAX_BYTES = 64 << 10  # of a longer line, only the beginning and the end are read
EVIDENCE_LEDGER_MAX_BYTES = 4 << 30
EVIDENCE_LEDGER_READ_S = 60.0
# Lines at the beginning and at the end of a log that show its job and its time.
EVIDENCE_SAMPLE_LINES = 400
# Findings in one file may say the same about the same rank, node and device. Then this many of the
# first and of the last are kept.
FINDINGS_FIRST_COUNT, FINDINGS_LAST_COUNT = 32, 8
FINDINGS_MAX_COUNT = 200_000
OWN_OUTPUT_LINES_MAX = 2_000  # the longest output of an earlier diagnosis within a log
PROGRESS_FROM_BYTES = 256 << 20
PROGRESS_FROM_DUMPS_COUNT = 1_000

# --- a script that `outlast check` tries
TRIAL_STEPS = 8  # a rank is replaced in steps 4 and 6, so each is seen before, within and after
TRIAL_KILL_STEPS = (4, 6)
TRIAL_STEPS_LEAST = 7
TRIAL_LIMIT_S = 180.0
TRIAL_SPARE_WAIT_S = 20.0  # for a spare that is still being prepared
TRIAL_STOP_S = 15.0  # for a run that was told to stop
# Size of a file that the script overwrites and that is restored afterwards.
TRIAL_COPY_BYTES = 1 << 30
TRIAL_ITEMS = 10_000
TRIAL_TENSOR_BYTES = 1 << 30

assert WRITER_MOVED_S < WRITER_AGAIN_S < WRITER_BACK_S < SAVE_STUCK_S < WRITER_SILENT_S
assert DIRECT_BLOCK_BYTES % DIRECT_ALIGN_BYTES == 0
assert SAVE_LEAST_S <= SAVE_FIRST_S < SAVE_AGAIN_S < SAVE_MOST_S
assert 0 < COMPANION_WAIT_S < LEAVE_DEADLINE_S < REGROUP_DEADLINE_S < BOOT_DEADLINE_S
assert LEAVE_DEADLINE_S < LEAVE_LAST_S < REGROUP_DEADLINE_S
assert STORE_CUT_S < LEAVE_DEADLINE_S < GROUP_CONNECT_S < REGROUP_DEADLINE_S
assert (
    TICK_S < LATE_TICK_S < STOPPED_FLOOR_S < STEP_FLOOR_S < STEP_CEILING_S <= FIRST_STEPS_DEADLINE_S
)
assert PING_DEADLINE_S < STOPPED_FLOOR_S, "a ping must be over before the shortest verdict"
assert PING_DEADLINE_S < INQUIRY_DEADLINE_S
assert LINGER_ANSWER_S < LINGER_S, "an answer comes before the next question"
assert SLOTS_COUNT == 2, "the vote frees exactly the older slot"
assert NOTICE_DRAIN_S + TERM_GRACE_S < 30, "a notice comes 30 s before the node is taken away"
assert LINK_RETRY_S < LINK_RETRY_MAX_S < CUT_FOR_GOOD_S < NODE_WAIT_S
assert LINK_PROBE_S + GROUP_CONNECT_S < REGROUP_DEADLINE_S, (
    "ranks say which nodes do not answer before they count as late"
)
assert LINK_PROBE_LOOK_S < LEAVE_DEADLINE_S, "a rank that asks leaves its generation in time"
assert STORE_DEADLINE_S < REGROUP_DEADLINE_S
assert BATCH_WAIT_S < COMPANION_WAIT_S, (
    "a regroup waits for its companions longer than a message waits for its batch"
)
assert VOTERS_LEAST <= VOTERS_COUNT and VOTERS_COUNT % 2 == 1
assert 0.2 < MISSED_SHARE < 1, "voters miss a coordinator before the leases of others are over"
assert LEASE_BEATS >= 3, "a lost message must not cost the lease"
assert PHASE_ERRORS_COUNT <= REPEATS_PER_STEP_COUNT
assert REPEATS_PER_STEP_COUNT <= SAME_STEP_FAULTS_COUNT < STANDSTILL_FAULTS_COUNT
assert SETUP_FAULTS_COUNT < SETUP_STRIKES_COUNT < STRIKES_COUNT
assert CHANNEL_BUFFER_MAX_BYTES > 2 * MESSAGE_MAX_BYTES
assert OOM_LOOK_S < OOM_WINDOW_S
assert HELPER_LOOK_S < HELPER_STOPPED_S < HELPER_ASK_S < HELPER_ANSWER_S < ZYGOTE_FORK_DEADLINE_S
assert START_RETRY_S < START_RETRY_MAX_S < START_REPORT_S < START_GIVE_UP_S < BOOT_DEADLINE_S
assert STARVING_LOOK_S < ZYGOTE_FORK_DEADLINE_S < ZYGOTE_BOOT_DEADLINE_S
assert TRACEBACK_MAX_BYTES * 4 < MESSAGE_MAX_BYTES
assert LOG_PARTIAL_S < LOG_TRACEBACK_QUIET_S < LOG_TRACEBACK_MAX_S
assert LOG_FOLDERS_COUNT * LOG_FOLDER_MAX_BYTES * 6 < MESSAGE_MAX_BYTES, "JSON has six for one"
assert EVIDENCE_PIECE_BYTES * 2 < MESSAGE_MAX_BYTES, "base64 has four bytes for three"
assert EVIDENCE_AGAIN_S < EVIDENCE_LAST_S < EVIDENCE_SILENT_S < EVIDENCE_GATHER_S
assert EVIDENCE_SENT_FILE_MAX_BYTES <= EVIDENCE_NODE_MAX_BYTES
assert max(TRIAL_KILL_STEPS) < TRIAL_STEPS_LEAST <= TRIAL_STEPS
assert TRIAL_SPARE_WAIT_S + TRIAL_STOP_S < TRIAL_LIMIT_S
assert EVIDENCE_HEAD_BYTES < EVIDENCE_LINE_MAX_BYTES < EVIDENCE_READ_BYTES
assert EVIDENCE_RATIO_FREE_BYTES < EVIDENCE_UNPACKED_MAX_BYTES
