"""Python exceptions by type, after all rules that know the message better.

The type says little of why; where it was raised says more (`logs/tracebacks.py` grades a traceback
that ends in the user's own file).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.diagnose.rules.table import Grade, Rule, effect, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
PYTHON = "python built-in exceptions"
EXC = Mechanism.EXCEPTION

# What a match of "data.nan" contains. The words before the value stand on each line of a healthy
# log, so they would make each line go through the pattern.
NOT_FINITE = (
    *(
        b" nan",
        b":nan",
        b"=nan",
        b" -inf",
        b":-inf",
        b"=-inf",
        b":inf",
        b"=inf",
        b": inf",
        b"= inf",
    ),
    *(
        b"is inf",
        b"re inf",
        b"as inf",
        b"me inf",
        b"es inf",
        b"ed inf",
        b"nt inf",
        b"to inf",
        b" a inf",
    ),
    *(b"nan or inf", b"found nan", b"found inf", b"nan loss", b"nan gradient", b"nonfinite"),
    *(b"non-finite", b"contains nan", b"contains inf", b"nan/inf", b"nan detected", b"result nan"),
)

RULES: tuple[Rule, ...] = (
    effect(
        "python.group_down",
        r"sigterm received|received"
        r" sigterm|keyboardinterrupt|brokenpipeerror|connectionreseterror|connectionabortederror"
        r"|eoferror: ran out of input|eoferror$|cannot schedule new futures",
        PYTHON,
        priority=12010,
    ),
    effect(  # a tracker of shared memory that outlives its job finds the names gone already
        "python.tracker",
        r"keyerror: ['\"]/?(?:psm|mp|loky|torch|wnsm|sem)[-_][^'\"]{1,60}['\"]"
        r"|resource_tracker: (?:process died|there appear to be)",
        "python multiprocessing/resource_tracker.py, shared_memory.py",
        priority=12012,
    ),
    # tensors that do not fit each other
    root(
        "torch.state_dict",
        r"size mismatch for|error\(s\) in loading state_dict|(?:missing|unexpected) key\(s\) in"
        r" state_dict",
        C.USER_CODE,
        G.NAMED,
        "torch nn/modules/module.py, load_state_dict",
        also=(C.USER_DATA, C.STORAGE),
        mechanism=EXC,
        priority=12015,
    ),
    root(
        "torch.shape",
        r"the size of tensor a \(|shapes? .{0,60}(?:cannot be multiplied|invalid"
        r" for input|mismatch|not aligned"
        r"|incompatible|cannot be broadcast)|must match the (?:existing )?size|shape"
        r" mismatch|sizes? of tensors must match"
        r"|expected .{0,80}(?:size|shape|dim|channels).{0,60}(?:but got|got|but found)"
        r"|stack expects each tensor to be equal size|dimension out of range|incompatible"
        r" (?:shape|dimension)s?|mat1 and mat2"
        r"|could not broadcast input array|operands could not be broadcast|inconsistent (?:tensor"
        r" )?(?:size|shape)|numel.{0,40}mismatch"
        r"|expected input batch_size|setting an array element with a sequence|is invalid for input"
        r" of size"
        r"|mismatched? (?:shape|size|dim)s?",
        C.USER_CODE,
        G.NAMED,
        "torch ATen shape checks; numpy",
        also=(C.USER_DATA,),
        mechanism=EXC,
        priority=12020,
    ),
    root(
        "torch.index",
        r"index out of range in self|index \d+ is out of bounds|index_select\(\)|out of range"
        r" \(expected to be in range"
        r"|target \d+ is out of bounds|srcindex < srcselectdimsize|string index out of range|list"
        r" index out of range|pop from empty",
        C.USER_CODE,
        G.LIKELY,
        "torch ATen index checks; " + PYTHON,
        also=(C.USER_DATA,),
        mechanism=EXC,
        priority=12030,
    ),
    root(
        "torch.autograd",
        r"modified by an inplace operation|does not require grad|backward through the graph a"
        r" second time"
        r"|one of the differentiated tensors|a leaf variable that requires grad|grad can be"
        r" implicitly created|no grad_fn"
        r"|optimizer got an empty parameter|unused parameters|element \d+ of tensors does not"
        r" require",
        C.USER_CODE,
        G.NAMED,
        "torch autograd engine messages",
        mechanism=EXC,
        priority=12040,
    ),
    root(
        "torch.types",
        r"expected all tensors to be on the same device|expected (?:scalar type|dtype|object"
        r" of|tensor for argument|device)"
        r"|input type .{0,60}and weight type|should be the same$|not implemented for"
        r" '(?:half|bfloat16|long|int|float|bool)"
        r"|mat1 and mat2 must have the same dtype|unsupported operand|is not a tensor",
        C.USER_CODE,
        G.LIKELY,
        "torch ATen type checks",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=12050,
    ),
    root(
        "torch.checkpoint",
        r"error\(s\) in loading state_dict|missing key\(s\) in state_dict|unexpected key\(s\) in"
        r" state_dict"
        r"|missing key.{0,40}(?:checkpoint|state)|loaded state dict"
        r" .{0,60}(?:size|different|match)|checkpoint .{0,80}(?:mismatch"
        r"|incompatible)|(?<!warning: )could not find the metadata file",
        C.USER_CODE,
        G.LIKELY,
        "torch nn/modules/module.py, optim/optimizer.py",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=12060,
    ),
    root(
        "torch.compile",
        r"torch\._dynamo\.exc|torch\._inductor\.exc|backendcompilerfailed"
        r"|internaltorchdynamoerror|internal"
        r" assert failed|inductorerror"
        r"|loweringexception|please report a bug to pytorch|failed running call_function",
        C.SOFTWARE_BUG,
        G.LIKELY,
        "torch _dynamo, _inductor, c10 INTERNAL_ASSERT",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=12070,
    ),
    root(
        "loss.scale",
        r"current loss scale already at minimum|minimum loss scale|cannot decrease scale anymore",
        C.USER_CODE,
        G.POSSIBLE,
        "deepspeed fp16 loss scaler",
        also=(C.USER_DATA, C.SILENT_DATA_CORRUPTION),
        mechanism=Mechanism.CORRUPT,
        priority=12080,
    ),
    root(
        "torch.weights_only",
        r"weights only load failed\. this file can still be loaded|was not an allowed global by"
        r" default",
        C.USER_CODE,
        G.NAMED,
        "torch serialization.py, _get_wo_message",
        also=(C.DEPENDENCY,),
        mechanism=EXC,
        priority=12085,
    ),
    # data
    root(
        "data.unparsed",
        r"jsondecodeerror|expecting value: line \d|yaml\.(?:scanner|parser|reader|composer"
        r"|constructor)\.\w{4,30}error|tomldecodeerror|configparser\.\w{4,40}error",
        C.USER_DATA,
        G.LIKELY,
        "python json, configparser, tomllib; PyYAML error.py",
        also=(C.USER_CODE, C.STORAGE),
        mechanism=EXC,
        priority=12088,
    ),
    root(
        "data.broken",
        r"unidentifiedimageerror|image file is truncated|truncated file read|cannot identify image"
        r" file|broken data stream|libsndfileerror|format not recogni[sz]ed|file contains data in"
        r" an unknown format|\bav\.error\.\w{0,40}error|averror_invaliddata|decorderror"
        r"|unicodedecodeerror|badzipfile|bad (?:crc|magic)|crc check"
        r" failed|unpicklingerror|invalid load key"
        r"|pickle data was truncated|tar\.readerror|readerror: (?:unexpected end|not"
        r" a|invalid)|zlib\.error"
        r"|error -\d while"
        r" decompressing|arrowinvalid|parquet.{0,60}(?:corrupt|invalid|magic)|corrupt(?:ed)?"
        r" (?:jpeg|image|file|record"
        r"|data|sample|video|input)|datasetgenerationerror|datasetgenerationcasterror"
        r"|parsererror|invalid"
        r" data found when processing input"
        r"|moov atom not found|lmdb\.\w{0,20}error|dataloss|corrupted record|decodeerror|decoding"
        r" error",
        C.USER_DATA,
        G.LIKELY,
        "python zipfile, pickle, zlib; arrow; tensorflow DataLoss; libsndfile, ffmpeg, Pillow",
        also=(C.STORAGE, C.USER_CODE),
        mechanism=EXC,
        priority=12090,
    ),
    root(
        "data.uneven",
        r"uneven (?:inputs|data|batch)|join context manager|ran out of"
        r" (?:data|inputs|batches)|iterabledataset.{0,80}(?:length|len|uneven"
        r"|mismatch)|stopiteration|dataset is empty|num_samples should be a positive|empty"
        r" dataset|length of iterabledataset",
        C.USER_DATA,
        G.POSSIBLE,
        "torch distributed/algorithms/join.py, utils/data",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=12100,
    ),
    replace(
        root(
            "data.nan",
            r"(?:loss|grad|grad_norm|norm|activation|logits"
            r"|probabilit)[\w \"\]')(]{0,24}(?:[:=] ?(?:nan|-?inf)\b"
            r"| (?:is|are|was|became|becomes|turned|went) (?:to )?(?:a )?(?:nan|-?inf)\b)"
            r"|nan or inf (?:found|in)|found (?:nan|inf)\b|\bnan (?:loss|gradients?)\b"
            r"|(?<!_)non-?finite(?![_a-z])|contains"
            r" (?:nan|inf)\b|nan/inf detected|input contains nan"
            r"|nan detected|unexpected result nan",
            C.USER_DATA,
            G.HINT,
            "torch anomaly mode, amp; megatron-lm training",
            also=(C.USER_CODE, C.SILENT_DATA_CORRUPTION),
            mechanism=Mechanism.CORRUPT,
            priority=12110,
        ),
        needles=NOT_FINITE,
    ),
    # files
    root(
        "script.missing",
        r"python[\d.]{0,6}: can't open file",
        C.USER_CODE,
        G.NAMED,
        "python Modules/main.c, pymain_open_filename",
        mechanism=Mechanism.EXIT,
        priority=12115,
    ),
    root(
        "files.unopened",
        r"parent directory .{1,160} does not exist|file .{1,160} cannot be opened",
        C.USER_CODE,
        G.POSSIBLE,
        "torch caffe2/serialize/inline_container.cc, PyTorchStreamWriter",
        also=(C.STORAGE, C.USER_DATA),
        mechanism=EXC,
        priority=12120,
    ),
    root(
        "files.missing",
        r"filenotfounderror|no such file or"
        r" directory|notadirectoryerror|isadirectoryerror|fileexistserror|errno 2\]|does not exist$"
        r"|no such file",
        C.USER_CODE,
        G.POSSIBLE,
        PYTHON + "; posix ENOENT",
        also=(C.STORAGE, C.USER_DATA),
        mechanism=EXC,
        priority=12130,
    ),
    root(
        "files.permission",
        r"permissionerror|permission denied|errno 13\b|\beacces\b|operation not permitted",
        C.USER_CODE,
        G.POSSIBLE,
        PYTHON + "; posix EACCES",
        also=(C.STORAGE, C.DEPENDENCY),
        mechanism=EXC,
        priority=12140,
    ),
    # the script
    root(
        "config.invalid",
        r"error: (?:unrecognized arguments|argument |the following arguments are required|invalid"
        r" choice|ambiguous option)|omegaconf\.(?:errors\.|\w{1,40}(?:error|exception)\b)"
        r"|hydra\.errors|configattributeerror|validationerror|missingmandatoryvalue"
        r"|pydantic(?:_core)?\.\w{0,40}error|validation errors? for \w|invalid"
        r" (?:option|config)|unknown (?:option"
        r"|argument|config)",
        C.USER_CODE,
        G.LIKELY,
        "python argparse; lightning, hydra configuration",
        also=(C.DEPENDENCY,),
        mechanism=EXC,
        priority=12150,
    ),
    root(
        "python.breakpoint",
        r"\bbdb\.bdbquit\b",
        C.USER_CODE,
        G.NAMED,
        PYTHON + ": a breakpoint() without a terminal",
        mechanism=EXC,
        priority=12155,
    ),
    root(
        "python.syntax",
        (
            r"(?:syntaxerror|indentationerror|taberror|nameerror|unboundlocalerror"
            r"|recursionerror|zerodivisionerror)(?::|$)"
        ),
        C.USER_CODE,
        G.NAMED,
        PYTHON,
        mechanism=EXC,
        priority=12160,
    ),
    root(
        "python.attribute",
        r"(?:attributeerror|typeerror|keyerror|indexerror|valueerror|assertionerror"
        r"|notimplementederror|overflowerror|lookuperror"
        r"|arithmeticerror)(?::|$)",
        C.USER_CODE,
        G.LIKELY,
        PYTHON,
        also=(C.SOFTWARE_BUG, C.USER_DATA),
        mechanism=EXC,
        priority=12170,
    ),
    root(
        "python.timeout",
        r"(?<![a-z])timeouterror|timeoutexpired|timeout expired|operation timed out|connection"
        r" timed"
        r" out|errno 110\b|deadline exceeded",
        C.NETWORK,
        G.HINT,
        PYTHON + "; posix ETIMEDOUT; grpc",
        also=(C.DEPENDENCY, C.STORAGE),
        mechanism=EXC,
        priority=12180,
    ),
    root(
        "python.os",
        (
            r"\boserror\b|\bioerror\b|blockingioerror|connectionerror|connectionrefusederror"
            r"|http\.client\.|urlerror|socket\.gaierror"
        ),
        C.DEPENDENCY,
        G.HINT,
        PYTHON,
        also=(C.STORAGE, C.NETWORK),
        mechanism=EXC,
        priority=12190,
    ),
    root(
        "glibc.heap",
        r"double free or corruption|free\(\): invalid|malloc\(\):"
        r" (?:corrupted|invalid|unaligned)|corrupted (?:size vs|double-linked"
        r"|unsorted)|munmap_chunk\(\)|stack smashing detected|heap corruption|pure virtual method"
        r" called|glibc detected",
        C.SOFTWARE_BUG,
        G.LIKELY,
        "glibc malloc/malloc.c",
        mechanism=Mechanism.SIGNAL,
        priority=12200,
    ),
    messenger(
        "python.fatal",
        r"fatal python error|terminate called|core dumped|stack trace of thread|\*\*\*"
        r" (?:aborted|sig)",
        "python faulthandler; glibc",
        mechanism=Mechanism.SIGNAL,
        priority=12210,
    ),
    root(
        "python.runtime",
        r"runtimeerror(?::|$)",
        C.USER_CODE,
        G.HINT,
        PYTHON,
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=12220,
    ),
    root(
        "python.other",
        r"(?:^|[\]:)] )[a-z_][\w.]{2,80}(?:error|exception): ",
        C.USER_CODE,
        G.HINT,
        PYTHON,
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=12230,
    ),
)
