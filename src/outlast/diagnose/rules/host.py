"""Rules for errors of a process's host, as errno and libraries report them.

They are about memory, disks, mounts, and the outside world.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
ERRNO = "posix errno"
EXC = Mechanism.EXCEPTION

RULES: tuple[Rule, ...] = (
    # /dev/shm first: it is memory, though errno may say otherwise
    root(
        "host.shm",
        r"/dev/shm.{0,120}(?:no space left|cannot allocate|failed|too small|errno 28|size)|(?:no"
        r" space left on device"
        r"|errno 28).{0,120}/dev/shm|unable to (?:allocate|mmap|open|write).{0,60}shared memory"
        r"(?!.{0,120}\((?:2|13|17|23|24)\))"
        r"|unable to write to file </torch_|shm_open.{0,40}(?:no space|cannot)|could not"
        r" (?:allocate|create) shared memory"
        r"|shm.{0,20}no space left",
        C.HOST_MEMORY,
        G.NAMED,
        "linux tmpfs; torch MapAllocator.cpp",
        mechanism=EXC,
        priority=3010,
    ),
    advice(
        "pyspy.no_stack",
        r"^error: failed to (?:get process executable|suspend process|find python version)"
        r"|^reason: (?:no such (?:file or directory|process)|permission denied|operation not"
        r" permitted) \(os error \d{1,3}\)"
        r"|^(?:error: )?permission denied: try running again with elevated permissions",
        "py-spy main.rs: what it says where it took no stack",
        priority=3015,
    ),
    root(
        "host.allocator",
        r"defaultcpuallocator: (?:can't allocate|not enough) memory|std::bad_alloc|cannot allocate"
        r" memory|errno 12\]|(?:_arraymemoryerror"
        r"|(?<!outof)memoryerror)\b|unable to allocate .{0,40}(?:gib|mib|tib|kib|bytes)"
        r"|out of memory \(needed|malloc(?:\(\))?.{0,20}(?:failed|of size)|virtual memory"
        r" exhausted|unable to mmap \d+ bytes"
        r"|failed to allocate (?:host|pinned|cpu) memory|pin(?:ned)? memory.{0,40}out of memory",
        C.HOST_MEMORY,
        G.LIKELY,
        ERRNO + " ENOMEM; torch c10/core/CPUAllocator.cpp; glibc",
        mechanism=EXC,
        priority=3020,
    ),
    root(
        "host.container_limit",
        r"container .{0,60}(?:exceeded|out of memory|memory"
        r" limit)|cgroup.{0,40}memory.{0,20}(?:limit|max)|oom_kill [1-9]",
        C.HOST_MEMORY,
        G.LIKELY,
        "linux mm/memcontrol.c; docker",
        mechanism=Mechanism.SIGNAL,
        priority=3030,
    ),
    # storage
    root(
        "disk.full",
        r"no space left on device|errno 28\b|enospc\b|disk quota exceeded|errno 122\b|edquot\b|not"
        r" enough (?:free )?disk space"
        r"|disk (?:is )?full|out of disk space",
        C.STORAGE,
        G.NAMED,
        ERRNO + " ENOSPC, EDQUOT",
        mechanism=EXC,
        priority=8010,
    ),
    root(
        "disk.io",
        r"input/output error|errno 5\b|remote i/o error|errno 121\b",
        C.STORAGE,
        G.LIKELY,
        ERRNO + " EIO",
        also=(C.SSD,),
        mechanism=EXC,
        priority=8020,
    ),
    root(
        "disk.stale",
        r"stale (?:nfs )?file handle|errno 116\b|\bestale\b|transport endpoint is not"
        r" connected|errno 107\b"
        r"|software caused connection abort|errno 103\b",
        C.STORAGE,
        G.NAMED,
        ERRNO + " ESTALE, ENOTCONN",
        mechanism=EXC,
        priority=8030,
    ),
    root(
        "disk.readonly",
        r"read-only file system|errno 30\b|\berofs\b",
        C.STORAGE,
        G.LIKELY,
        ERRNO + " EROFS",
        also=(C.SSD,),
        mechanism=EXC,
        priority=8040,
    ),
    root(
        "disk.locked",
        r"no locks available|errno 37\b|flock.{0,40}(?:failed|not supported)|unable to"
        r" (?:lock|synchronously open) file"
        r"|unable to open file \(unable to lock",
        C.STORAGE,
        G.POSSIBLE,
        ERRNO + " ENOLCK; nfs",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=8050,
    ),
    root(
        "disk.mount",
        r"mount (?:failed|error)|failedmount|unable to attach or mount"
        r" volumes|mountvolume\.\w{1,20} failed|permission denied.{0,20}nfs"
        r"|is not a mountpoint|mount point.{0,40}(?:missing|gone)",
        C.STORAGE,
        G.LIKELY,
        "kubernetes volume manager; linux mount",
        also=(C.DEPENDENCY,),
        priority=8060,
    ),
    root(  # the writer says that the file did not take its bytes
        "torch.stream_failed",
        (
            r"pytorchstreamwriter failed writing.{0,120}file write failed|basic_ios::clear"
            r"|iostream error|inline_container.{0,40}unexpected pos \d{1,16} vs"
        ),
        C.STORAGE,
        G.LIKELY,
        "torch caffe2/serialize/inline_container.cc; glibc iostream",
        also=(C.HOST_MEMORY,),
        mechanism=EXC,
        priority=8070,
    ),
    messenger(
        "torch.stream_writer",
        r"pytorchstreamwriter failed|unexpected pos \d+ vs|file"
        r" write failed|write failed: ",
        "torch caffe2/serialize/inline_container.cc: the disk or the memory under it",
        failure_class=C.STORAGE,
        grade=G.HINT,
        mechanism=EXC,
        priority=8080,
    ),
    root(  # images in shared memory, files of checkpoints, copies that arrived from another node
        "outlast.damage",
        r"outlast\.errors\.corrupterror\b",
        C.STORAGE,
        G.LIKELY,
        "outlast errors.py: bytes that do not match their checksum or their schema",
        also=(C.SYSTEM_MEMORY, C.SSD),
        mechanism=Mechanism.CORRUPT,
        priority=8085,
    ),
    messenger(  # the same without its module, as a ledger and error files have it
        "outlast.damage_said",
        r"(?:^|\")corrupterror: ",
        "outlast errors.py: bytes that do not match their checksum or their schema",
        failure_class=C.STORAGE,
        grade=G.HINT,
        mechanism=Mechanism.CORRUPT,
        priority=8086,
    ),
    root(
        "outlast.memory",
        r"\bcapacityerror: .{0,120}(?:no room for|more bytes in"
        r"|could not be allocated|no vault can be made)",
        C.HOST_MEMORY,
        G.LIKELY,
        "outlast errors.py: memory that images need, and how much there is",
        also=(C.STORAGE,),
        mechanism=EXC,
        priority=3012,
    ),
    root(
        "torch.stream_reader",
        r"pytorchstreamreader failed|failed finding central directory|invalid header or archive is"
        r" corrupted|unexpected eof.{0,40}(?:file"
        r"|corrupt)|safetensorerror|headertoolarge|incompletemetadata|metadataincompletebuffer",
        C.STORAGE,
        G.POSSIBLE,
        "torch caffe2/serialize; huggingface safetensors",
        also=(C.USER_DATA, C.USER_CODE),
        mechanism=EXC,
        priority=8090,
    ),
    root(
        "object.store",
        r"slowdown.{0,40}reduce your request"
        r" rate|\bs3\b[^/]{0,60}(?:timeout|error|throttl|reset)|nosuchbucket|botocore\.exceptions"
        r"|google\.api_core\.exceptions|azure\.core\.exceptions|gcsfs.{0,40}error"
        r"|endpointconnectionerror|requesttimetooskewed",
        C.STORAGE,
        G.POSSIBLE,
        "aws botocore, s3 error codes; cloud clients",
        also=(C.DEPENDENCY, C.NETWORK),
        mechanism=EXC,
        priority=8100,
    ),
    root(
        "memory.ray",
        r"worker exit type: node_out_of_memory|due to the node running low on memory",
        C.HOST_MEMORY,
        G.NAMED,
        "ray src/ray/raylet/node_manager.cc, its memory monitor",
        mechanism=Mechanism.SIGNAL,
        priority=8092,
    ),
    # services and packages
    root(
        "dependency.unresolved",
        r"max retries exceeded with url.{0,200}(?:nameresolutionerror|failed to resolve|name"
        r" resolution|name or service not known)",
        C.DEPENDENCY,
        G.POSSIBLE,
        "python urllib3, requests; posix getaddrinfo",
        also=(C.NETWORK, C.USER_CODE),
        mechanism=EXC,
        priority=8095,
    ),
    advice(  # a tracker of experiments goes on without its server, and so does the job
        "tracker.offline",
        r"\bwandb: (?:error|warning|network error)[: ].{0,160}(?:w&b api|deadline exceeded|retry"
        r"|http|response|timed? ?out)",
        "incident: a finished run whose tracker lost its server; incident: a run that goes on while"
        " its tracker retries",
        priority=8105,
    ),
    root(
        "dependency.service",
        r"hfhubhttperror|repositorynotfounderror|localentrynotfounderror|can't load (?:the"
        r" )?(?:tokenizer|model|configuration) for"
        r"|gatedrepoerror|trying to access a gated repo|cannot access gated repo"
        r"|\bwandb\.(?:errors|sdk)[\w.]{0,60}error"
        r"|couldn't connect to 'https|max retries exceeded with url|proxyerror|sslerror|ssl:"
        r" certificate"
        r"|http error [45]\d\d|\d\d\d server error|429 client error|too many requests|internal"
        r" server error|bad gateway|read timed out"
        r"|connecttimeout|newconnectionerror|service unavailable|gateway"
        r" time-?out|comet.{0,40}error|mlflow.{0,40}(?:error|exception)",
        C.DEPENDENCY,
        G.LIKELY,
        "huggingface hub errors; python urllib3, requests",
        also=(C.NETWORK, C.USER_CODE),
        mechanism=EXC,
        priority=8110,
    ),
    root(
        "dependency.unreached",
        r"<urlopen error|clientconnector\w{0,20}error|httpx\.\w{0,30}(?:error|timeout)"
        r"|requests\.exceptions\.(?:connect|timeout|readtimeout)",
        C.DEPENDENCY,
        G.POSSIBLE,
        "python urllib.request; aiohttp, httpx, requests",
        also=(C.NETWORK, C.USER_CODE),
        mechanism=EXC,
        priority=8115,
    ),
    root(
        "dependency.import",
        r"modulenotfounderror: |importerror: |undefined symbol|version"
        r" `(?:glibc|glibcxx|cxxabi)[^']{0,20}' not found"
        r"|cannot open shared object file|dll load failed|symbol lookup error"
        r"|contextualversionconflict|numpy\.dtype size changed|compiled (?:using|against)"
        r" .{0,30}(?:numpy|api|abi|version)|wrong elf class"
        r"|unsupported (?:gnu|gcc) version",
        C.DEPENDENCY,
        G.LIKELY,
        "python import system; glibc ld.so",
        also=(C.USER_CODE, C.SOFTWARE_BUG),
        mechanism=EXC,
        priority=8120,
    ),
    root(
        "dependency.not_built",
        r"distributed package doesn't have \w{2,10} built in|torch not compiled with \w{2,10}"
        r" enabled|is only supported with gpus, no gpus found",
        C.DEPENDENCY,
        G.LIKELY,
        "torch distributed_c10d.py, cuda/__init__.py, ProcessGroupNCCL.cpp",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=8125,
    ),
    root(
        "dependency.conflict",
        r"no module named|cannot import name|is incompatible with|requires .{0,60}but you"
        r" have|versionconflict"
        r"|warning: .{0,60}not installed",
        C.DEPENDENCY,
        G.HINT,
        "python import system: also said where it does no harm",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=8130,
    ),
    root(
        "dependency.build",
        r"error (?:building|compiling) extension|ninja: build stopped|nvcc fatal"
        r"|cuda_home (?:environment variable is not set|does not exist)|unable to compile cuda op"
        r"|cuda version mismatch|installed cuda version .{0,40}does not match|command"
        r" '.{0,60}(?:gcc|g\+\+|nvcc|ninja)' .{0,60}(?:failed"
        r"|returned)",
        C.DEPENDENCY,
        G.LIKELY,
        "torch utils/cpp_extension.py; deepspeed op_builder",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=8140,
    ),
    root(
        "dependency.image",
        r"errimagepull|imagepullbackoff|failed to pull image|manifest unknown|toomanyrequests:"
        r" |exec format error|oci runtime"
        r"|runc create failed|containerd.{0,40}failed",
        C.DEPENDENCY,
        G.LIKELY,
        "kubernetes kubelet images; docker",
        mechanism=Mechanism.EXIT,
        priority=8150,
    ),
)
