"""Rules for torch.distributed: watchdog, heartbeat monitor, stores, gloo, DDP and FSDP.

A watchdog names collateral ranks. The rank that they wait for is found from sequence numbers
(`logs/watchdog.py`, `fuse/desync.py`) or from dumps.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, effect, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
NCCL_PG = "torch csrc/distributed/c10d/ProcessGroupNCCL.cpp"
STORE = "torch csrc/distributed/c10d/TCPStore*.cpp, socket.cpp"
GLOO = "gloo transport/tcp/pair.cc, unbound_buffer.cc; torch ProcessGroupGloo.cpp"
WRAPPER = "torch csrc/distributed/c10d/ProcessGroupWrapper.cpp"
EXC, HANG = Mechanism.EXCEPTION, Mechanism.HANG

RULES: tuple[Rule, ...] = (
    # a rank that was told by another one to dump says how far it had come, and does not wait
    # a call that torch refuses before anything is sent: the rank that made it is at fault
    root(
        "c10d.argument",
        r"processgroup\w{2,12}::\w{2,40}: (?:invalid|requires|expected|unsupported|unknown)"
        r"|must match number of collective participants|tensors must be cuda and dense"
        r"|no backend type associated with device type",
        C.USER_CODE,
        G.LIKELY,
        "torch csrc/distributed/c10d/Utils.hpp, ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp",
        mechanism=EXC,
        priority=10002,
    ),
    advice(
        "c10d.told",
        r"received a dump signal due to a collective timeout from (?:some |another |an)?\s?"
        r"(?:other )?rank",
        NCCL_PG + ", heartbeat monitor",
        priority=10005,
    ),
    effect(  # a program's own words about another rank
        "c10d.peer_said",
        r"error: .{0,80}\b(?:rank \d{1,6}|(?:an)?other ranks?|a peer|one of the ranks|some ranks?)"
        r" (?:has |have )?(?:already )?(?:failed|crashed|died|raised|aborted)\b(?! to\b)",
        "torch: an exception is raised by the rank that has it; incident: a barrier of its own",
        mechanism=EXC,
        priority=10007,
    ),
    # reported by the rank that noticed
    messenger(
        "c10d.timeout",
        r"watchdog caught collective operation timeout|timeout at nccl work|nccl work[^:]{0,40}"
        r" timed out|collective operation timed out"
        r"|timed out waiting \d+ ?ms for (?:recv|send|unpaired)|wait timeout after \d+ ?ms|watchdog"
        r" caught collective operation",
        NCCL_PG,
        mechanism=HANG,
        priority=10010,
    ),
    messenger(
        "c10d.status",
        r"last enqueued (?:nccl )?work|failure detected by watchdog|exception \(either an error or"
        r" timeout\) detected by watchdog",
        NCCL_PG,
        mechanism=HANG,
        priority=10020,
    ),
    messenger(
        "c10d.heartbeat",
        r"heartbeat monitor timed out|watchdog (?:thread )?(?:got stuck|is"
        r" stuck|hang)|processgroupnccl'?s watchdog got stuck",
        NCCL_PG,
        mechanism=HANG,
        priority=10030,
    ),
    effect(
        "c10d.watchdog_exception",
        r"watchdog thread terminated with exception|some nccl operations have failed or timed"
        r" out|to avoid (?:this|data) inconsistency"
        r"|we are taking the entire process down|exception raised from"
        r" (?:checkfornccl|checktimeout|run|ncclcommwatchdog|handle\w{0,20}timeout)",
        NCCL_PG,
        priority=10040,
    ),
    effect(
        "c10d.dump",
        r"should dump|received a dump signal|dumping (?:debug|flight)|flight ?recorder|finished"
        r" writing"
        r"|stack trace of the failed collective not found"
        r"|trace_buffer_size|exception_dump|collective timeout.{0,60}dump",
        NCCL_PG,
        priority=10050,
    ),
    effect(
        "c10d.left_open",
        r"destroy_process_group\(?\)? was not called|process group has not been destroyed|waiting"
        r" for pending (?:work|nccl)"
        r"|shutdown complete",
        NCCL_PG,
        priority=10060,
    ),
    # DETAIL debugging names the fault
    root(
        "c10d.mismatch",
        r"detected mismatch between collectives on ranks|collectives differ in the following"
        r" aspects|collective(?:s)? .{0,40}mismatch",
        C.USER_CODE,
        G.LIKELY,
        WRAPPER,
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=10070,
    ),
    root(
        "c10d.desync",
        r"\[desync.{0,10}\]|did not join (?:at|collective)|joined but didn't finish",
        C.USER_CODE,
        G.POSSIBLE,
        NCCL_PG + ", desync debug",
        also=(C.SOFTWARE_BUG,),
        mechanism=HANG,
        priority=10080,
    ),
    effect(
        "c10d.barrier_peer",
        r"successfully reached monitoredbarrier, but received errors",
        "torch ProcessGroupGloo.cpp, monitoredBarrier: rank 0, which does the monitoring, is gone",
        mechanism=EXC,
        priority=10085,
    ),
    messenger(
        "c10d.barrier",
        r"failed to pass monitoredbarrier|monitoredbarrier.{0,60}timed? ?out",
        "torch ProcessGroupGloo.cpp, monitoredBarrier",
        mechanism=HANG,
        priority=10090,
    ),
    root(
        "gloo.size",
        r"op\.preamble\.length <= op\.nbytes|op\.nbytes ==|size mismatch.{0,20}gloo",
        C.USER_CODE,
        G.LIKELY,
        GLOO,
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=10100,
    ),
    root(
        "c10d.unequal_inputs",
        r"tensor list must have .{0,40}same (?:size|shape)|tensors? must (?:be|have) (?:the"
        r" )?(?:same|identical|equal|contiguous)"
        r"|invalid usage of tensors with different|input tensor .{0,40}must be"
        r" .{0,40}world.?size|all tensor operands to .{0,20}must have "
        r"the same number|split sizes doesn't match",
        C.USER_CODE,
        G.LIKELY,
        "torch distributed_c10d.py, ProcessGroup*.cpp",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=10110,
    ),
    # DDP and FSDP tell the user
    root(
        "ddp.unused",
        r"expected to have finished reduction in the prior iteration|marked? (?:a"
        r" )?(?:variable|parameter).{0,80}ready (?:only once|twice)"
        r"|parameters? that (?:were|was) not used in producing loss|did not receive grad",
        C.USER_CODE,
        G.NAMED,
        "torch csrc/distributed/c10d/reducer.cpp",
        mechanism=EXC,
        priority=10120,
    ),
    root(
        "ddp.params",
        r"ddp expects same model across all ranks|params? .{0,20} in process .{0,40}appears not to"
        r" match|appears not to match (?:strides"
        r"|sizes) of the same param",
        C.USER_CODE,
        G.NAMED,
        "torch c10d reducer.cpp, _verify_param_shape_across_processes",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=10130,
    ),
    root(
        "c10d.group_missing",
        r"default process group has not been initialized|process group has already been initialized"
        r"|trying to initialize the default process group twice"
        r"|invalid (?:rank|world_size)|rank \d+ (?:is )?out of bounds|group rank.{0,30}not part"
        r" of|process group is not initialized",
        C.USER_CODE,
        G.LIKELY,
        "torch distributed_c10d.py",
        mechanism=EXC,
        priority=10140,
    ),
    # the store and its sockets: they break when another process has died
    root(
        "store.port_taken",
        r"failed to listen on any local network address|address already in"
        r" use|eaddrinuse|errno: 98",
        C.USER_CODE,
        G.LIKELY,
        STORE + "; posix EADDRINUSE",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=10150,
    ),
    advice(
        "store.unnamed",
        r"^.{0,80}\[w\d{0,4}[ \d:.-]{0,24} ?socket\.cpp.{0,40}hostname .{0,80}cannot be"
        r" (?:resolved|retrieved)",
        STORE + ": a warning, and it goes on",
        priority=10160,
    ),
    root(
        "store.unresolved",
        r"(?:hostname .{0,80}cannot be (?:resolved|retrieved)|temporary failure in name"
        r" resolution|name or service not known"
        r"|getaddrinfo failed|nodename nor servname)",
        C.NETWORK,
        G.POSSIBLE,
        STORE + "; posix getaddrinfo",
        also=(C.DEPENDENCY, C.USER_CODE),
        mechanism=EXC,
        priority=10170,
    ),
    advice(  # a host without IPv6: the next address is tried
        "store.next_address",
        r"client socket cannot be initialized to connect to .{0,120}errno: 97\b",
        STORE,
        priority=10001,
    ),
    messenger(
        "store.connect",
        r"client socket has timed out|the client socket has failed to connect|socket timeout|failed"
        r" to connect to .{0,60}(?:timed out"
        r"|after)",
        STORE,
        failure_class=C.NETWORK,
        grade=G.HINT,
        mechanism=EXC,
        priority=10180,
    ),
    messenger(
        "store.clients",
        r"waiting for clients\. \d+/\d+ clients joined|timed out waiting for clients|wait timeout"
        r" after"
        r"|timed out initializing process group in store based barrier"
        r"|store based barrier .{0,80}(?:timeout|timed out)",
        STORE,
        mechanism=HANG,
        priority=10190,
    ),
    root(
        "gloo.interface",
        r"unable to find address for ?: ?\S|unable to resolve hostname to a \(local\) address",
        C.USER_CODE,
        G.LIKELY,
        "gloo transport/tcp/device.cc, GLOO_SOCKET_IFNAME",
        also=(C.NETWORK, C.DEPENDENCY),
        mechanism=EXC,
        priority=10195,
    ),
    effect(
        "store.broken",
        r"recvvalue|sendbytes failed|recvbytes failed|failed to recv|broken pipe|connection reset"
        r" by peer|connection was likely closed"
        r"|tcpstore"
        r"|connection refused|socket is closed|errno: 104|errno: 32|failed to (?:send|receive)"
        r" .{0,30}socket|store->(?:get|set|check)|\[c10d\]",
        STORE,
        priority=10200,
    ),
    effect(
        "gloo.closed",
        r"connection closed by peer|application timeout caused pair"
        r" closure|gloo/transport/tcp|socket unexpectedly closed|read timeout \["
        r"|read error \[",
        GLOO,
        priority=10210,
    ),
    messenger(
        "gloo.mesh",
        r"connectfullmesh failed|gloo connect|makedeviceforhostname|unable to (?:find|resolve)"
        r" (?:address|hostname).{0,30}",
        GLOO,
        failure_class=C.NETWORK,
        grade=G.HINT,
        mechanism=EXC,
        priority=10220,
    ),
    messenger(
        "c10d.backend_error",
        r"distbackenderror|distnetworkerror|diststoreerror|nccl communicator|ncclutils\.",
        "torch distributed, error classes",
        mechanism=EXC,
        priority=10230,
    ),
    advice(
        "c10d.advice",
        r"torch_distributed_debug|torch_nccl_|nccl_async_error_handling|nccl_blocking_wait"
        r"|omp_num_threads|torch_show_cpp_stacktraces"
        r"|torch_cpp_log_level"
        r"|using the current (?:cuda )?device set by the user|no device id is provided",
        "torch, warnings",
        priority=10240,
    ),
)
