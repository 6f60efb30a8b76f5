"""NCCL and RCCL lines, and what verbs and sockets say through them.

`unhandled system error` and `remote process exited` say that something failed, here or elsewhere,
not what.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, effect, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
IB = "nccl src/transport/net_ib; rdma-core ibv_wc_status"
INIT = "nccl src/init.cc, src/graph, src/misc"
SHM = "nccl src/transport/shm.cc, src/misc/shmutils.cc"
EXC = Mechanism.EXCEPTION

RULES: tuple[Rule, ...] = (
    # shared memory: /dev/shm is memory
    root(
        "nccl.shm",
        r"error while creating shared memory segment|posix_fallocate failed|failed to"
        r" (?:allocate|create|open"
        r"|extend) [^/]{0,40}(?:shared memory|/dev/shm)"
        r"|call to (?:ftruncate|posix_fallocate|shm_open)[^:]{0,40} failed|/dev/shm/nccl[^"
        r" ]{0,40}[^/]{0,80}(?:no space|failed|error)"
        r"|unable to create shared memory",
        C.HOST_MEMORY,
        G.NAMED,
        SHM,
        mechanism=EXC,
        priority=7010,
    ),
    # verbs completions: the status says who is at fault
    root(
        "ib.retry_exceeded",
        r"(?:status=|error |with error )12[ ,(]|ibv_wc_retry_exc_err|transport retry counter"
        r" exceeded|retry exceeded",
        C.NETWORK,
        G.LIKELY,
        IB,
        also=(C.NIC,),
        mechanism=EXC,
        priority=7020,
    ),
    root(
        "ib.rnr",
        r"(?:got completion|completion with error)[^,]{0,120}(?:status=|error )13["
        r" ,(]|ibv_wc_rnr_retry_exc_err",
        C.NETWORK,
        G.POSSIBLE,
        IB,
        also=(C.NIC, C.STRAGGLER),
        mechanism=EXC,
        priority=7030,
    ),
    effect(
        "ib.flushed",
        r"(?:got completion|completion with error)[^,]{0,120}(?:status=|error )5["
        r" ,(]|ibv_wc_wr_flush_err|work request flushed",
        IB,
        priority=7040,
    ),
    root(
        "ib.protection",
        r"(?:got completion|completion with error)[^,]{0,120}(?:status=|error )(?:4|9|10)["
        r" ,(]|ibv_wc_(?:loc_prot|rem_access|rem_inv_req)_err|async fatal event on (?:qp|cq)",
        C.DEPENDENCY,
        G.POSSIBLE,
        IB + ": peer memory, ACS",
        also=(C.SOFTWARE_BUG, C.NIC),
        mechanism=EXC,
        priority=7050,
    ),
    root(
        "ib.remote_operation",
        r"(?:got completion|completion with error)[^,]{0,120}(?:status=|error"
        r" )(?:11|14|15|17|19|20|21|22)[ ,(]|ibv_wc_rem_op_err",
        C.NETWORK,
        G.POSSIBLE,
        IB,
        also=(C.NIC, C.SOFTWARE_BUG),
        mechanism=EXC,
        priority=7060,
    ),
    root(
        "ib.local_fault",
        r"ibv_wc_(?:loc_qp_op|loc_len|loc_eec_op|fatal|general)_err",
        C.NIC,
        G.POSSIBLE,
        IB,
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=7070,
    ),
    root(
        "ib.completion",
        r"got completion (?:from peer|with)",
        C.NETWORK,
        G.POSSIBLE,
        IB,
        also=(C.NIC,),
        mechanism=EXC,
        priority=7080,
    ),
    root(
        "ib.port_error",
        r"got async (?:error )?event ?: ?(?:port error|client reregistration|lid change|sm"
        r" change)|ibv_event_port_err",
        C.NETWORK,
        G.LIKELY,
        IB,
        also=(C.NIC,),
        priority=7090,
    ),
    root(
        "ib.device_fatal",
        r"got async (?:error )?event ?: ?(?:local catastrophic|device fatal|internal"
        r" error)|ibv_event_device_fatal|net/ib : \S{1,40} async fatal event: ",
        C.NIC,
        G.NAMED,
        IB,
        priority=7100,
    ),
    messenger(
        "ib.async",
        r"got async (?:error )?event|got non-fatal async event|got fatal async event",
        IB,
        failure_class=C.NETWORK,
        grade=G.HINT,
        priority=7110,
    ),
    root(  # an adapter of AWS: nobody answers at the far end, or it was never reached
        "efa.unresponsive",
        r"unresponsive (?:receiver|remote)|remote is unreachable|unestablished_recv_unresp",
        C.NETWORK,
        G.POSSIBLE,
        "aws libfabric prov/efa/src/efa_errno.h",
        also=(C.NIC, C.CHASSIS),
        mechanism=EXC,
        priority=7112,
    ),
    messenger(
        "efa.failed",
        r"net/ofi .{0,60}completed with error|efa_rdm_\w{1,40}error\w{0,10}\(\)",
        "aws aws-ofi-nccl",
        failure_class=C.NETWORK,
        grade=G.HINT,
        mechanism=EXC,
        priority=7114,
    ),
    root(
        "ib.no_route",
        r"(?:ibv_modify_qp|modify_qp|ibv_create_ah|call to connect)[^:]{0,60}"
        r" failed[^:]{0,40}(?:connection timed out|no route to host"
        r"|network is unreachable|errno 110|errno 113)"
        r"|no route to host|network is unreachable|network is down",
        C.NETWORK,
        G.LIKELY,
        IB + "; posix errno",
        also=(C.NIC, C.DEPENDENCY),
        mechanism=EXC,
        priority=7120,
    ),
    root(
        "ib.memory_lock",
        r"ibv_(?:reg_mr|create_cq|create_qp|alloc_pd)[^:]{0,60} failed[^:]{0,60}(?:cannot allocate"
        r" memory|resource temporarily)"
        r"|increase memlock",
        C.DEPENDENCY,
        G.POSSIBLE,
        IB + ": ulimit -l",
        also=(C.NIC, C.USER_CODE),
        mechanism=EXC,
        priority=3005,  # before memory of the host: a limit is missing, and no memory
    ),
    root(
        "ib.verbs",
        r"call to ibv_\w{1,30} failed|ibv_\w{1,30} failed|ibv_poll_cq\(\) failed",
        C.NIC,
        G.POSSIBLE,
        IB,
        also=(C.NETWORK, C.DEPENDENCY),
        mechanism=EXC,
        priority=7140,
    ),
    # NCCL's own
    root(
        "nccl.duplicate_gpu",
        r"duplicate gpu detected",
        C.USER_CODE,
        G.NAMED,
        INIT,
        mechanism=EXC,
        priority=7150,
    ),
    root(
        "nccl.truncated",
        r"message truncated ?: ?received",
        C.SOFTWARE_BUG,
        G.LIKELY,
        "nccl src/transport/net_socket.cc, net_ib.cc",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=7160,
    ),
    root(
        "nccl.mismatch",
        r"mismatched collective detected|root rank mismatch|mismatch.{0,30}between ranks",
        C.SOFTWARE_BUG,
        G.LIKELY,
        INIT,
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=7170,
    ),
    root(
        "nccl.version",
        r"nccl version mismatch|mismatched nccl versions?|ncclcomminitrank.{0,40}version|undefined"
        r" symbol: nccl"
        r"|nccl_net_plugin.{0,40}version",
        C.DEPENDENCY,
        G.NAMED,
        INIT,
        mechanism=EXC,
        priority=7180,
    ),
    root(
        "nccl.interface",
        r"bootstrap ?: no (?:socket )?interface found|no (?:usable )?socket interface found|no"
        r" interface found with name",
        C.USER_CODE,
        G.POSSIBLE,
        "nccl src/misc/socket.cc, NCCL_SOCKET_IFNAME",
        also=(C.NETWORK, C.DEPENDENCY),
        mechanism=EXC,
        priority=7190,
    ),
    root(
        "nccl.invalid_usage",
        r"ncclinvalidusage|ncclinvalidargument|invalid usage\b|nccl error[^:]{0,20}: invalid"
        r" argument",
        C.USER_CODE,
        G.POSSIBLE,
        "nccl ncclResult_t",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=7200,
    ),
    root(
        "nccl.topology",
        r"failed to find reverse path|could not find (?:a )?path for|no path to"
        r" net|nvls[^:]{0,40}(?:multicast|bind)[^:]{0,60}fail"
        r"|cumulticast\w{1,30}[^:]{0,20} fail",
        C.NVLINK,
        G.POSSIBLE,
        INIT + "; src/transport/nvls.cc",
        also=(C.DEPENDENCY, C.SOFTWARE_BUG),
        mechanism=EXC,
        priority=7210,
    ),
    root(
        "nccl.internal",
        r"ncclinternalerror|nccl warn internal error|: internal error - please report",
        C.SOFTWARE_BUG,
        G.HINT,
        "nccl ncclResult_t",
        mechanism=EXC,
        priority=7220,
    ),
    messenger(
        "nccl.unhandled",
        r"unhandled (?:system|cuda) error|ncclsystemerror|ncclunhandledcudaerror",
        "nccl ncclResult_t",
        mechanism=EXC,
        priority=7230,
    ),
    messenger(
        "nccl.remote",
        r"ncclremoteerror|remote process exited or there was a network error",
        "nccl ncclResult_t",
        failure_class=C.NETWORK,
        grade=G.HINT,
        mechanism=EXC,
        priority=7240,
    ),
    effect(
        "nccl.socket",
        r"(?:socketprogress|net/socket|misc/socket|bootstrap)[^/]{0,80}(?:connection"
        r" closed|connection refused|connection reset"
        r"|connection from|timed out|unexpected)"
        r"|connection closed by remote peer|call to (?:recv|send|connect|accept)[^:]{0,60} failed",
        "nccl src/misc/socket.cc",
        priority=7250,
    ),
    effect(
        "nccl.proxy",
        r"\[proxy (?:service|progress)[^\]]{0,20}\]|proxy call to rank|comm[^:]{0,40}"
        r" abort|ncclcommabort"
        r"|(?:nccl )?communicator was aborted|aborting nccl"
        r"|ncclcomm.{0,40}aborted",
        "nccl src/proxy.cc",
        priority=7260,
    ),
    messenger(
        "nccl.ras",
        r"ras.{0,40}(?:mismatch|missing|unresponsive|error|timeout)",
        "nccl src/ras",
        mechanism=Mechanism.HANG,
        priority=7270,
    ),
    messenger(
        "nccl.warn",
        r"nccl warn ",
        "nccl src/debug.cc",
        priority=7280,
    ),
    advice(
        "nccl.plugin",
        r"nccl info (?:net|tuner|profiler|env)/plugin",
        "nccl src/plugin/plugin_open.cc: without a plugin it goes on with its own",
        priority=7290,
    ),
    advice(
        "nccl.advice",
        r"run with nccl_debug=|last error:$|check nccl warnings for the failure reason",
        "torch c10d NCCLUtils; nccl",
        priority=7300,
    ),
)
