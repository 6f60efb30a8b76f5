"""Every limit and every default duration, with its relation to the others checked at import.

Units: `_s` seconds, `_bytes` bytes, `_count` pieces, `_steps` steps.
"""

from __future__ import annotations

# --- regroup --------------------------------------------------------------------------------------
COMPANION_WAIT_S = 0.003  # after a first fault, wait this long for others of the same event
# a collective failed, and no process is known to be dead: wait this long for the culprit's notice
COLLATERAL_WAIT_S = 0.05
# a survivor blocked in a collective must have left it by then; measured 1-2 ms after waking
LEAVE_DEADLINE_S = 0.5
# longer by so much for each rank: the coordinator tells all and hears all, one after the other
# (benchmarks/channel.py: 0.02-0.04 ms)
RANK_HEARD_S = 0.00005
# ... and by then where nobody else holds the replicated state
LEAVE_LAST_S = 10.0
LEAVE_STEPS = 3.0  # a survivor that is computing gets this many of its learned steps instead
# survivors and replacements have joined a new generation, the state moved between them through
# memory; a donor that writes at 3 GB/s hands 90 GB over in it
REGROUP_DEADLINE_S = 30.0
BOOT_DEADLINE_S = 1_800.0  # process start to the first step, imports and model building included
# places at which a survivor can leave a backward; each costs every backward about 2 us
BACKWARD_EXITS_COUNT = 16
GROUP_TIMEOUT_S = 1_800.0  # torch's own time-out for a collective; outlast never waits for it
STORE_DEADLINE_S = 20.0  # the store host says its port
STORE_TRY_S = 1.0  # torch's client of the store gives one connection up after about so long
STORE_LOOK_S = 0.02  # a store that takes no connection is tried again this often
STORE_REFUSED_S = 1.0  # it has listened before: if it refuses connections for so long, it is gone
GROUP_CONNECT_S = 10.0  # all ranks are there: connecting a process group takes milliseconds
NCCL_ABORT_S = 10.0  # aborting the communicators of a broken generation takes milliseconds
# an old process group's threads are joined this long after it is gone, off the path to training
GROUP_LET_GO_S = 0.5
# while something else refers to such a group, it is looked at so often, each time twice as long
# after the last look
GROUP_LET_GO_LOOKS_COUNT = 7
# a process waits so long, in such looks, for the threads of its gloo groups to end their last work
RUN_LOOP_LOOK_S = 0.001
RUN_LOOP_LOOKS_COUNT = 1000
THREADS_LOOK_S = 0.1  # a rank that can start no threads looks this often whether it can now
THREAD_WAIT_S = 5.0  # without the thread that listens a process ends after this, for another try
# before its first step, a run whose rank cannot start the threads of its group ends after this
FIRST_THREADS_WAIT_S = 60.0
GROUP_POLL_S = 0.0005  # how often a rank looks whether the others have reached the group
# a rank that waits for a vote is woken at once; it looks this often anyway, should the
# wake-up come a moment too early
BALLOT_LOOK_S = 0.01
BALLOT_MAX_BYTES = 512

# --- detection ------------------------------------------------------------------------------------
TICK_S = 0.05  # the agent looks at the beacons this often
LATE_TICK_S = 0.15  # a tick later than this moves the deadlines by its lateness (trap 19)
DEADLINE_FACTOR = 5.0  # a phase is overdue at this many times its learned duration
STEP_FLOOR_S = 1.0  # no deadline of a step's phases is shorter
# a batch may take this long: loaders pause where machines are busy, and one that has died says so
# at once
DATA_FLOOR_S = 10.0
STOPPED_FLOOR_S = 0.5  # a process that the kernel reports as stopped (SIGSTOP) is given this long
STEP_CEILING_S = 600.0
FIRST_STEPS_COUNT = 3  # compile, warm-up, allocator: these are not learned from ...
# ... and have this deadline, until the run has shown how long they take
FIRST_STEPS_DEADLINE_S = 600.0
FIRST_STEPS_FLOOR_S = 10.0  # once it has, those of a process that comes later have none shorter
CHECKPOINT_DEADLINE_S = 1_800.0
EVALUATION_DEADLINE_S = 3_600.0
BETWEEN_DEADLINE_S = 1_800.0
# a worker whose listener does not answer by then holds the GIL, or is stopped
PING_DEADLINE_S = 0.2
# of the time that a rank stands still, so much may be excused because its threads were ready and
# had no processor
STARVED_MAX_S = 60.0
# the script of a rank is over, and its process goes on: that is reported after so long, and again
# each time that twice as long has passed
LINGER_S = 10.0
# a rank has left the script in the middle of a step (sys.exit): so long the others may take to do
# the same, or it is replaced
LEFT_IN_STEP_S = 15.0
LINGER_ANSWER_S = 1.0  # such a process says by then where it stands, or is looked at from outside
INQUIRY_DEADLINE_S = 0.6  # all agents have said how their ranks stand: pings included
SNAPSHOT_FLOOR_S = 5.0
# while all others wait for a rank that may still stand where it stands, they are asked again this
# often
AWAITED_LOOK_S = 10.0

# --- several nodes --------------------------------------------------------------------------------
BEAT_S = 1.0  # an agent asks for its lease this often ...
LEASE_BEATS = 6  # ... and has it for so many of these times
# a second of one clock is at most so much longer or shorter than one of another
CLOCK_DRIFT_MAX = 0.01
LEASE_KILL_S = 1.0  # an agent whose lease is out has killed its processes by then
# words that the other workers of a node are about to say too wait this long for them
BATCH_WAIT_S = 0.002
OFFSET_SAMPLES_COUNT = 16  # messages that tell how two clocks differ
SILENT_LOOK_S = 0.5  # a rank that is awaited and cannot be heard is looked for this often
# a launcher whose connection has closed is looked for this often, until its lease is void ...
LAUNCHER_LOOK_S = 0.05
# ... and has ended once nobody listened at its port for so long. The kernel has killed its
# processes by then
LAUNCHER_GONE_S = 0.2
RECONNECT_S = 0.5  # an agent without a connection tries again this often ...
RECONNECT_FIRST_S = 0.02  # ... and at first sooner, each time twice as long after the last time
# an agent whose coordinator cannot be reached for so long, after it has been in, gives the run up
COORDINATOR_WAIT_S = 60.0
# a launcher's ports: for images, votes, agents after a takeover, and two hosts of the store
PORTS_LEAST_COUNT = 5
# a node that does not reach the coordinator at the start says so after this long, then this often
TRIES_TOLD_FIRST_S = 10.0
TRIES_TOLD_S = 60.0
STRANGE_ANSWERS_COUNT = 3  # in a row, at the start: no `outlast run` listens there
LEASE_S = 1.0  # of an agent, where the run has up to ...
LEASE_NODES_COUNT = 64  # ... so many nodes; the larger lease of more nodes costs less
VOTERS_COUNT = 5  # agents that keep copies of the ledger, and of whom one may take the run over
VOTERS_LEAST = 3  # with fewer nodes, none can take over
MISSED_SHARE = 0.6  # of a lease: a coordinator that is silent for so long is missing
CLAIM_STAGGER_S = 0.1  # voters try to take over one after the other, so much apart
VOTERS_RENEW_S = 2.0  # so long after a voter was lost, or a node has come, others are named
# so many leases after its vote, a voter gives it to nobody else: the candidate begins meanwhile
CLAIM_LEASES = 2
COPIES_QUEUE_MAX_COUNT = 50_000  # records that wait for a voter which does not acknowledge them
IMAGE_READERS_COUNT = 64  # an agent serves its image to so many at once
IMAGE_PIECE_BYTES = 1 << 20  # of an image, sent before anything else gets its turn
IMAGE_QUIET_S = 10.0  # a node that serves no byte of an image for so long cannot be reached
IMAGE_LOOK_S = 0.1  # a reader of an image looks this often whether its generation is over
COPY_ROOM_BYTES = 32 << 20  # of memory for a copy, allocated before anything else gets its turn
COPY_LOOK_S = 0.02  # a rank that waits for its copy looks this often whether its generation is over
END_WAIT_S = 5.0  # at the end of a run, other nodes have ended their processes by then
LIVES_TOLD_S = 1.0  # an agent tells this often how its workers have spent their time
# nodes that were asked for and do not come: then the run begins on those that are there, if they
# have room
ENROL_WAIT_S = 600.0
# a lost rank finds no node with room, or nodes cannot reach each other: so long the run waits for
# one, or for them
NODE_WAIT_S = 1_800.0
# a group that could not be formed across a link is tried again this much later, each time twice as
# long ...
LINK_RETRY_S = 1.0
LINK_RETRY_MAX_S = 30.0  # ... up to this
CONTROL_WAIT_S = 5.0  # a connection to the control socket that has asked for nothing by then
CONTROL_CALLERS_COUNT = 16  # connections to the control socket at once; more are turned away
CONTROL_REASON_CHARS = 500  # of the words of a person who asks for something
CONTROL_GONE_S = 20.0  # a launcher whose run has stopped has ended by then
LISTENER_WAIT_S = 10.0  # a connection that has not named and proven its node by then is closed
LISTENER_STRANGERS_COUNT = 256  # such connections at once; the others wait in the kernel's queue
# descriptors of the coordinator's process besides its connections: ledger, logs, store
LISTENER_FILES_COUNT = 256
# a connection that is silent for so long is asked after: a node that lost its power closes nothing
LISTENER_KEEPALIVE_S = 60.0

# --- budgets --------------------------------------------------------------------------------------
# the same step fails this often, with every process alive, before a dearer rung
REPEATS_PER_STEP_COUNT = 3
SETUP_FAULTS_COUNT = 2  # interruptions before the first commit of a run
# budget of losses that are repaired by replacing ranks, however many at once ...
RESPAWNS_COUNT = 16
# ... and a newly committed step gives all of them back: kills in a run that makes progress cost it
# time, and do not end it
RESPAWN_REFILL_STEPS = 0
RESTARTS_COUNT = 3  # whole restarts in stock; so many newly committed steps give one back
REFILL_STEPS = 10
# interruptions at one step, of any kind, before the verdict "crash loop"; executing it, if only
# again, ends the count
SAME_STEP_FAULTS_COUNT = 5
# interruptions, at any steps, of a run that executes old steps again and commits no new one, before
# that verdict
STANDSTILL_FAULTS_COUNT = 20
# Ranks that are killed from outside say nothing of the script. A run that such kills keep from
# committing a step ends after more of them than this (or than that, before its first step) ...
STRIKES_COUNT = 20
SETUP_STRIKES_COUNT = 5
# ... and not before it has stood still for so long. It begins again with this pause by then: what
# is started in the midst of such kills is killed, too
STRIKES_STANDSTILL_S = 30.0
STRIKES_PAUSE_S = 0.25
# so many of the newest interruptions are remembered, for verdicts that come late; all of them are
# in the ledger
INTERRUPTIONS_KNOWN_COUNT = 1_000

# a drain that something else comes between is tried so often; then what lives on the node stays
# until it is lost
DRAIN_TRIES_COUNT = 3

# --- spares ---------------------------------------------------------------------------------------
SPARE_PLAIN_WAIT_S = 5.0  # a script that has not called outlast.join by then gets warm spares
SPARE_FAILURES_COUNT = 3  # spares that ended before they parked, before no more are made
SPARE_REFILL_DELAY_S = 1.0  # a spent spare is replaced this long after training goes on

# --- open files -----------------------------------------------------------------------------------
# Measured: a launcher has 31, and 10 for each worker or spare; a worker has 16 to 19 of its own. A
# worker that is being replaced and its successor are there at once.
RUN_FILES_COUNT = 64
WORKER_FILES_COUNT = 16

# --- processes ------------------------------------------------------------------------------------
TERM_GRACE_S = 10.0  # SIGTERM to SIGKILL at the end of a run
# SIGKILL to the kernel's report that the process is gone: giving tens of gigabytes back takes
# seconds
KILL_DEADLINE_S = 60.0
WORKERS_MAX_COUNT = 256  # per node
SIGINT_EXIT_CODE = 130  # a run that was ended by Ctrl-C ends with this
ORPHAN_EXIT_CODE = 113  # a worker whose agent is gone ends with this
ZYGOTE_BOOT_DEADLINE_S = 120.0
# without an answer to a request, of time in which it had a processor; later, the zygote is taken
# for lost
ZYGOTE_FORK_DEADLINE_S = 10.0
# while it owes an answer, so often the kernel is asked whether it has a processor
STARVING_LOOK_S = 1.0
ZYGOTE_LOSSES_COUNT = 3  # in a row, without a fork in between, before workers are spawned instead
HELPER_LOOK_S = 0.1  # the zygote and the hosts of stores are looked at this often ...
HELPER_STOPPED_S = 0.4  # ... replaced when the kernel holds them stopped for this long ...
HELPER_ASK_S = 1.0  # ... and asked this long after their last answer, while they are idle
# an idle helper that had a processor for this long and does not answer is replaced
HELPER_ANSWER_S = 2.0
# a process that could not be started is tried again this much later, each time twice as long ...
START_RETRY_S = 0.25
START_RETRY_MAX_S = 5.0  # ... up to this
START_GIVE_UP_S = 1_500.0  # ... and no more after this: others wait for it
FIRST_STARTS_COUNT = 4  # ... nor after so many times, where no process of the run has ever started
START_REPORT_S = 30.0  # a process that still cannot be started is reported this often
FORKS_IN_FLIGHT_COUNT = 8  # requests the zygote has not answered yet; the others wait here
HOUSEKEEPING_S = 0.25  # dead processes are reaped this long after they were seen to end
# a forked worker's wait for the launcher to become its parent: long only where the process between
# them gets no processor
ADOPTION_DEADLINE_S = 60.0
OOM_WINDOW_S = 10.0  # a SIGKILL this soon after the kernel counted an OOM kill is taken for it
OOM_LOOK_S = 2.0  # the counters are read this often, and at each death

# --- messages -------------------------------------------------------------------------------------
MESSAGE_MAX_BYTES = 1 << 20
TRACEBACK_MAX_BYTES = 64 << 10  # as it is written on the wire
CHANNEL_BUFFER_MAX_BYTES = 8 << 20  # unsent to one peer
CHANNEL_READ_BYTES = 64 << 10
# that a message to an agent and one from it leave behind, until they are acknowledged
OBJECTS_PER_AGENT_COUNT = 16
LOOP_CROWD_COUNT = 256  # ready descriptors that a loop serves in their own order

# --- input ----------------------------------------------------------------------------------------
GIVEN_FILE_MAX_BYTES = 1 << 20  # of a file named on a command line that is read whole
GIVEN_LINE_MAX_BYTES = 64 << 10  # of one that is read line by line

# --- logs -----------------------------------------------------------------------------------------
LOG_READ_BYTES = 64 << 10
LOG_READ_LITTLE_BYTES = 256  # of a worker's output, where there is no memory for more
LOG_LINE_MAX_BYTES = 64 << 10  # a longer line reaches the console in pieces
LOG_PARTIAL_S = 0.2  # the beginning of a line is shown after this long without its end
LOG_TAIL_LINES = 200  # of each worker's stderr, kept for the verdict
LOG_DRAIN_MAX_BYTES = 4 << 20  # read at most this much of what a dead worker left in its pipes

# --- console --------------------------------------------------------------------------------------
CONSOLE_BUFFER_BYTES = 1 << 20  # printed and not yet written; lines beyond that are left out
PAGE_SENT = "sent"  # what the process that sends a page prints once it has arrived
CONSOLE_LINGER_S = 2.0  # a console that takes nothing for this long does not hold up the end

# --- vault ----------------------------------------------------------------------------------------
CHECKSUM_BLOCK_BYTES = 256 << 10
SLOTS_COUNT = 2
TWINS_COUNT = 8  # ranks that stand for each other, of those that hold the same shards
VAULT_SPARE_BYTES = 16 << 20  # left free in /dev/shm for other programs
LEFT_VAULTS_TOLD_BYTES = 100_000_000  # of dead runs together: a new run says that they are there
VAULT_STALE_S = 86_400.0  # a dead run's vault is removed after a day
KEEP_SHARE = 0.005  # of the time that `--keep vault:auto` may cost
KEEP_LEAST_S = 0.1  # between two copies of the state in the vault, however little they cost
TENSOR_HEADER_BYTES = 256  # estimate of a tensor's entry in an image's header, alignment included
STATE_TEXT_BYTES = 4 << 10  # room for a state's text to grow from step to step
SHAPES_LOOK_STEPS = 16  # between two looks at the shapes of parameters and of what optimizers hold
WATCH_BYTES = 128 << 10  # of replicated state, looked at at once
WATCH_TENSORS_COUNT = 16  # and of no more tensors than these
# between two such looks: one takes some 0.1 ms, and on a device it waits for the device
WATCH_EVERY_STEPS = 8
WATCH_REFRESH_STEPS = 16  # the list of what there is to look at is made again this often
LOADER_END_S = 0.2  # a loader's worker whose connection is gone has ended by then, if it was killed
LOG_ENTRIES_KEPT_COUNT = 500  # newest entries of Trainer's log_history, kept with each step
LOADER_POSITION_BYTES = 256 << 10  # room for the position of a loader that keeps state of its own
IMAGE_ALIGN_BYTES = 64  # tensors begin at a multiple of this in an image
IMAGE_HEADER_MAX_BYTES = 100_000_000  # safetensors refuses longer headers
# room kept in an image's header for metadata that changes from step to step
METADATA_RESERVE_BYTES = 1 << 10

# --- checkpoints ----------------------------------------------------------------------------------
SAVE_FIRST_S = 10.0  # `--keep disk:auto`: of training before the first, which measures the cost
SAVE_AGAIN_S = 60.0  # the same: after a checkpoint that failed
SAVE_LEAST_S, SAVE_MOST_S = 10.0, 86_400.0  # between two, however little or much one costs
SAVE_CHANGE_SHARE = 0.1  # of the interval: the ledger records a new one that differs by more
PRUNE_WAIT_S = 60.0  # the end of a run waits so long for older checkpoints to be removed
CHECKPOINTS_KEPT_COUNT = 2  # in a run's folder; the last restorable one is never removed
MANIFEST_MAX_BYTES = 64 << 20  # about 500,000 files; a longer one is refused unread
RECORD_MAX_BYTES = 1 << 30  # about five million chunks of tensors
WRITEBACK_BYTES = 16 << 20  # of a checkpoint that is written, before its disk is told to begin
READ_BLOCK_BYTES = 2 << 20  # of a checkpoint that is loaded, read and summed at once

# --- object storage -------------------------------------------------------------------------------
OBJECT_PART_BYTES = 16 << 20  # of a file that is uploaded, in one request; S3 takes 5 MiB or more
OBJECT_PARTS_MAX_COUNT = 9_000  # of one file: S3 takes 10,000, so parts of a larger file are larger
OBJECT_PARTS_AT_ONCE_COUNT = 4
UPLOAD_LOOK_S = 1.0  # the process that uploads looks this often whether a checkpoint is finished
UPLOAD_TOLD_S = 1.0  # ... and says this often that bytes are on their way
# after an upload that failed the next try begins so long after, and each time twice as long ...
UPLOAD_AGAIN_FIRST_S = 1.0
UPLOAD_AGAIN_S = 300.0  # ... up to this
UPLOAD_LAST_TRIES_COUNT = 3  # of the newest checkpoint, once the run is over
# at the end of a run, an upload without any news for so long is given up. One request may be tried
# for as long as `BESIDE_TRAINING` of runtime/objects says, so an upload that still goes on may be
# given up if its server is silent
UPLOAD_SILENT_S = 60.0
UPLOADER_AGAIN_S = 60.0  # a process that uploads and has died is started again, at most so late
DOWNLOAD_TRIES_COUNT = 3  # of a checkpoint at the start of a run, for bytes that arrive damaged

# --- ledger ---------------------------------------------------------------------------------------
LEDGER_FLUSH_S = 1.0
STATUS_EVERY_S = 60.0  # off a terminal, of the live view's status line
# flushes in a row that fail before that is reported: a lock may be held for a moment
LEDGER_TRIES_COUNT = 3

EVIDENCE_BUDGET_S = 0.02  # what a recovery waits for the reading of evidence, in all
STACKS_SIGNAL = 42  # a real-time signal in the middle of their range, not used by default
# on top of that, for a hung process to write down its stacks: it does so within 2 ms of getting a
# processor, and on a busy machine it gets one after some tens of them. Its hang took a second to
# see
STACKS_WAIT_S = 0.05
STACKS_FRESH_S = 30.0  # those that are older are of an earlier alarm
DIAGNOSIS_S = 60.0  # finding a verdict may take so long
LAST_DIAGNOSIS_S = 15.0  # at the end of a run
# a copy of so many takes some ms; torch's own default takes four times as long
FLIGHT_RECORDER_ENTRIES = 512
CONNECT_TRY_S = 5.0  # for a connection to oneself, before a run begins
CARD_MAX_BYTES = 1 << 20  # of a run.json
RUN_RANKS_MAX_COUNT = 65_536  # of one ledger: what tells of more is damaged
LEDGER_VERSION = 4
LEDGER_OLDEST_VERSION = 1  # read too, and brought up to date when a run is resumed
CURVES_MAX_COUNT = 8  # of the values that a script logs, so many are kept over time
LEDGER_MERGE_S = 60.0  # old buckets of steps are merged this often
# (age, width) in seconds, the oldest first: from that age on, a bucket of steps is that long
STEP_BUCKET_LEVELS = ((86_400.0, 1_800.0), (3_600.0, 60.0))
LEDGER_QUEUE_MAX_COUNT = 20_000  # records kept in memory while the disk refuses
LOCK_PATIENCE_S = 0.2  # a launcher tries a taken lock for this long: readers hold it for an instant

# --- evidence -------------------------------------------------------------------------------------
EVIDENCE_HEAD_BYTES = 8 << 10  # so much of a file tells what it is
EVIDENCE_FILES_MAX_COUNT = 1_000_000  # 16,384 ranks with dumps, logs and stacks are 100,000
# an archive in an archive in an archive ...; a compressed tar is one
EVIDENCE_NESTING_MAX_COUNT = 4
EVIDENCE_UNPACKED_MAX_BYTES = 64 << 30  # of all archives together
# unpacked to packed, counted once more than the next line has been unpacked; deflate reaches 1,032
EVIDENCE_RATIO_MAX = 200
EVIDENCE_RATIO_FREE_BYTES = 256 << 20
EVIDENCE_DISK_SPARE_BYTES = 1 << 30  # left free where archives are unpacked
# the list of members at a zip's end, which is read into memory
EVIDENCE_DIRECTORY_MAX_BYTES = 64 << 20
EVIDENCE_TAR_NAME_MAX_BYTES = 64 << 10
EVIDENCE_XZ_MEMORY_BYTES = 512 << 20  # xz -9 needs 65 MB
EVIDENCE_READ_BYTES = 1 << 20
EVIDENCE_LINE_MAX_BYTES = 64 << 10  # a longer line is read as its beginning and its end
EVIDENCE_LEDGER_MAX_BYTES = 4 << 30
EVIDENCE_LEDGER_READ_S = 60.0
# of a log's beginning and of its end, looked at for whose job it is and when
EVIDENCE_SAMPLE_LINES = 400
# kept of those that say the same of the same rank, node and device in one file
FINDINGS_FIRST_COUNT, FINDINGS_LAST_COUNT = 32, 8
FINDINGS_MAX_COUNT = 200_000
OWN_OUTPUT_LINES_MAX = 2_000  # an earlier diagnosis within a log is no longer than this
PROGRESS_FROM_BYTES = 256 << 20
PROGRESS_FROM_DUMPS_COUNT = 1_000

# --- a script that `outlast check` tries
TRIAL_STEPS = 8  # a rank is replaced in steps 4 and 6, so each is seen before, within and after
TRIAL_KILL_STEPS = (4, 6)
TRIAL_STEPS_LEAST = 7
TRIAL_LIMIT_S = 180.0
TRIAL_SPARE_WAIT_S = 20.0  # for a spare that is still being prepared
TRIAL_STOP_S = 15.0  # for a run that was told to stop
TRIAL_COPY_BYTES = 1 << 30  # of a file that the script overwrites and that is put back
TRIAL_ITEMS = 10_000
TRIAL_TENSOR_BYTES = 1 << 30

assert SAVE_LEAST_S <= SAVE_FIRST_S < SAVE_AGAIN_S < SAVE_MOST_S
assert 0 < COMPANION_WAIT_S < LEAVE_DEADLINE_S < REGROUP_DEADLINE_S < BOOT_DEADLINE_S
assert LEAVE_DEADLINE_S < LEAVE_LAST_S < REGROUP_DEADLINE_S
assert GROUP_POLL_S < COMPANION_WAIT_S and LEAVE_DEADLINE_S < GROUP_CONNECT_S < REGROUP_DEADLINE_S
assert (
    TICK_S < LATE_TICK_S < STOPPED_FLOOR_S < STEP_FLOOR_S < STEP_CEILING_S <= FIRST_STEPS_DEADLINE_S
)
assert PING_DEADLINE_S < STOPPED_FLOOR_S, "a ping must be over before the shortest verdict"
assert PING_DEADLINE_S < INQUIRY_DEADLINE_S
assert LINGER_ANSWER_S < LINGER_S, "an answer comes before the next question"
assert SLOTS_COUNT == 2, "the vote frees exactly the older slot"
assert LINK_RETRY_S < LINK_RETRY_MAX_S < NODE_WAIT_S
assert BATCH_WAIT_S < COMPANION_WAIT_S, (
    "a regroup waits for its companions longer than a message waits for its batch"
)
assert VOTERS_LEAST <= VOTERS_COUNT and VOTERS_COUNT % 2 == 1
assert 0.2 < MISSED_SHARE < 1, "voters miss a coordinator before the leases of others are over"
assert LEASE_BEATS >= 3, "a lost message must not cost the lease"
assert REPEATS_PER_STEP_COUNT <= SAME_STEP_FAULTS_COUNT < STANDSTILL_FAULTS_COUNT
assert SETUP_FAULTS_COUNT < SETUP_STRIKES_COUNT < STRIKES_COUNT
assert CHANNEL_BUFFER_MAX_BYTES > 2 * MESSAGE_MAX_BYTES
assert OOM_LOOK_S < OOM_WINDOW_S
assert HELPER_LOOK_S < HELPER_STOPPED_S < HELPER_ASK_S < HELPER_ANSWER_S < ZYGOTE_FORK_DEADLINE_S
assert START_RETRY_S < START_RETRY_MAX_S < START_REPORT_S < START_GIVE_UP_S < BOOT_DEADLINE_S
assert STARVING_LOOK_S < ZYGOTE_FORK_DEADLINE_S < ZYGOTE_BOOT_DEADLINE_S
assert TRACEBACK_MAX_BYTES * 4 < MESSAGE_MAX_BYTES
assert max(TRIAL_KILL_STEPS) < TRIAL_STEPS_LEAST <= TRIAL_STEPS
assert TRIAL_SPARE_WAIT_S + TRIAL_STOP_S < TRIAL_LIMIT_S
assert EVIDENCE_HEAD_BYTES < EVIDENCE_LINE_MAX_BYTES < EVIDENCE_READ_BYTES
assert EVIDENCE_RATIO_FREE_BYTES < EVIDENCE_UNPACKED_MAX_BYTES
