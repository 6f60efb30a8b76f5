"""Failures of the CUDA runtime and driver, cuDNN, cuBLAS, NVML and the AMD stack in users' logs.

An asynchronous error is reported by the next code that checks for errors, often a NCCL watchdog. So
the message counts, and not its reporter.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, effect, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
RUNTIME = "nvidia CUDA runtime API, enum cudaError_t and cudaGetErrorString"
SMI = "nvidia NVML return codes and nvidia-smi"
TORCH = "torch ATen/c10 CUDA sources"
EXC = Mechanism.EXCEPTION

RULES: tuple[Rule, ...] = (
    advice(
        "cuda.advice",
        r"cuda kernel errors might be asynchronously reported|for debugging consider passing"
        r" cuda_launch_blocking"
        r"|compile with `?torch_use_cuda_dsa|device-side assertions were explicitly omitted",
        TORCH,
        priority=1010,
    ),
    # memory of the device, broken
    root(
        "cuda.ecc",
        r"uncorrectable (?:dram |sram |double.bit )?ecc error|ecc"
        r" uncorrectable|cudaerrorecc|uncorrectable double.bit ecc",
        C.HBM,
        G.NAMED,
        RUNTIME,
        also=(C.SRAM, C.GPU),
        mechanism=EXC,
        priority=1020,
    ),
    root(  # what a monitor says of a GPU by its number; of the host's memory no line names a GPU
        "gpu.memory",
        r"\bgpu[ #:]{0,2}\d{1,2}\b.{0,60}(?:uncorrectable (?:memory|ecc)|double.bit|\(dbe\)"
        r"|row.?remapp\w{1,4} fail)|uncorrectable memory errors?.{0,20} on gpu\b",
        C.HBM,
        G.LIKELY,
        "dcgm diagnostics and health watches; nvidia-smi",
        also=(C.SRAM, C.GPU),
        priority=1025,
    ),
    root(
        "cuda.nvlink",
        r"uncorrectable nvlink error|cudaerrornvlinkuncorrectable",
        C.NVLINK,
        G.NAMED,
        RUNTIME,
        mechanism=EXC,
        priority=1030,
    ),
    root(
        "cuda.peer_or_hardware",
        r"invalid access of peer gpu memory over nvlink or a hardware error",
        C.NVLINK,
        G.POSSIBLE,
        RUNTIME,
        also=(C.GPU, C.SOFTWARE_BUG),
        mechanism=EXC,
        priority=1040,
    ),
    root(
        "cuda.contained",
        r"cudaerrorcontained|cuda_error_contained",
        C.NVLINK,
        G.POSSIBLE,
        RUNTIME,
        also=(C.GPU, C.HBM),
        mechanism=EXC,
        priority=1050,
    ),
    root(
        "cuda.tensor_memory",
        r"tensor memory leak|cudaerrortensormemoryleak",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        RUNTIME,
        mechanism=EXC,
        priority=1060,
    ),
    # No machine has a hundred terabytes: the size itself is wrong, as of an index that was taken
    # for a size, or of tensors that ranks misunderstood.
    root(
        "torch.absurd_size",
        r"you tried to allocate \d{15,24} bytes|(?:tried|unable) to allocate"
        r" (?:[\d.]{1,16} (?:pib|eib|zib)|\d{3,8}\.?\d{0,4} tib)",
        C.USER_CODE,
        G.LIKELY,
        "torch c10/core/impl/alloc_cpu.cpp, c10/cuda/CUDACachingAllocator.cpp; numpy _core",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=1065,
    ),
    # memory of the device, exhausted
    root(
        "cuda.oom",
        r"cuda out of memory|cuda error: out of memory|hip out of"
        r" memory|torch\.(?:cuda\.)?outofmemoryerror|cuda_error_out_of_memory"
        r"|cuda failure (?:2 )?'out of memory'|resource_exhausted: out of"
        r" memory|resourceexhaustederror: oom when allocating|cudaerrormemoryallocation"
        r"|outofmemory: cuda|failed to allocate .{0,60}on (?:the )?gpu",
        C.GPU_OOM,
        G.NAMED,
        RUNTIME,
        mechanism=EXC,
        priority=1070,
    ),
    root(
        "cuda.oom_cublas",
        r"cublas_status_alloc_failed|cudnn_status_alloc_failed|cufft_alloc_failed",
        C.GPU_OOM,
        G.LIKELY,
        "nvidia cuBLAS, cuDNN, cuFFT status codes",
        mechanism=EXC,
        priority=1080,
    ),
    # the user's indices
    root(
        "cuda.index_assert",
        r"assertion `[^`]{0,160}(?:index|class|target|idx|size|dim|bound|ndim)[^`]{0,120}` failed"
        r"|scattergatherkernel\.cu|indexkernel\.cu|indexing\.cu|nllloss[^ ]{0,20}\.cu|embedding[^"
        r" ]{0,40}\.cu",
        C.USER_CODE,
        G.NAMED,
        "torch ATen/native/cuda kernels, CUDA_KERNEL_ASSERT",
        also=(C.USER_DATA,),
        mechanism=EXC,
        priority=1090,
    ),
    root(
        "cuda.device_assert",
        r"device-side assert triggered|cudaerrorassert",
        C.USER_CODE,
        G.LIKELY,
        RUNTIME,
        also=(C.USER_DATA, C.SOFTWARE_BUG),
        mechanism=EXC,
        priority=1100,
    ),
    # kernels that read or jump where they may not
    root(
        "cuda.illegal_access",
        r"illegal memory access|cudaerrorillegaladdress|cuda_error_illegal_address|cuda exception:"
        r" warp illegal address",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        RUNTIME,
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=1110,
    ),
    root(
        "cuda.misaligned",
        r"misaligned address|cudaerrormisalignedaddress",
        C.SOFTWARE_BUG,
        G.LIKELY,
        RUNTIME,
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=1120,
    ),
    root(
        "cuda.illegal_instruction",
        r"an illegal instruction was encountered|invalid program counter|operation not supported on"
        r" global/shared address space"
        r"|cudaerrorillegalinstruction",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        RUNTIME,
        also=(C.GPU, C.USER_CODE),
        mechanism=EXC,
        priority=1130,
    ),
    root(
        "cuda.launch_failure",
        r"unspecified launch failure|cudaerrorlaunchfailure|cuda_error_launch_failed",
        C.SOFTWARE_BUG,
        G.HINT,
        RUNTIME,
        also=(C.GPU,),
        mechanism=EXC,
        priority=1140,
    ),
    root(
        "cuda.launch_timeout",
        r"the launch timed out and was terminated",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        RUNTIME,
        mechanism=EXC,
        priority=1150,
    ),
    root(
        "cuda.stack",
        r"hardware stack error|cudaerrorhardwarestackerror",
        C.GPU,
        G.LIKELY,
        RUNTIME,
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=1160,
    ),
    # the device itself
    root(
        "nvml.lost",
        r"(?:gpu(?: ?#?\d{1,2})?|cuda:\d{1,2}) is (?:lost|not accessible)|nvml_error_gpu_is_lost"
        r"|lost gpu\b"
        r"|(?:gpu|cuda)[ #:\w]{0,16} (?:has fallen|fell|dropped|lost) (?:off|from) the"
        r" (?:pcie? )?bus",
        C.GPU,
        G.NAMED,
        SMI,
        also=(C.CHASSIS,),
        priority=1170,
    ),
    root(
        "nvml.handle",
        r"unable to determine the device handle for gpu",
        C.GPU,
        G.LIKELY,
        SMI,
        also=(C.CHASSIS,),
        priority=1180,
    ),
    root(
        "nvml.reset_required",
        r"gpu(?: ?#?\d{1,2})? (?:requires reset|needs to be reset)|nvml_error_reset_required"
        r"|reset required\b",
        C.GPU,
        G.LIKELY,
        SMI,
        also=(C.HBM,),
        priority=1190,
    ),
    root(
        "nvml.none",
        r"no devices were found|no cuda-capable device is detected|no cuda gpus are"
        r" available|cudaerrornodevice",
        C.GPU,
        G.POSSIBLE,
        SMI,
        also=(C.DEPENDENCY, C.USER_CODE),
        priority=1200,
    ),
    # a row of nvidia-smi's table: the card does not answer
    root(
        "nvml.no_answer",
        r"^\|.{0,120}\b(?P<device>[0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
        r" (?:on|off) \| {1,24}err!",
        C.GPU,
        G.LIKELY,
        SMI,
        also=(C.HBM, C.CHASSIS),
        priority=1202,
    ),
    root(
        "nvml.no_reading",
        r"^\| {0,4}(?:n/a|err!|\d{1,3}%) {1,6}(?:err!|\d{1,3}c) {1,6}(?:err!|p\d{1,2})"
        r" {1,24}err! /",
        C.GPU,
        G.POSSIBLE,
        SMI,
        priority=1204,
    ),
    root(
        "nvml.infoROM",
        r"inforom is corrupted|corrupted inforom",
        C.GPU,
        G.LIKELY,
        SMI,
        priority=1210,
    ),
    root(
        "cuda.unknown",
        r"cuda error: unknown error|cuda unknown error|cudaerrorunknown|cuda_error_unknown|cuda"
        r" failure 999",
        C.GPU,
        G.POSSIBLE,
        RUNTIME,
        also=(C.DEPENDENCY, C.SOFTWARE_BUG),
        mechanism=EXC,
        priority=1220,
    ),
    root(
        "cuda.busy",
        r"all cuda-capable devices are busy or unavailable|cudaerrordevicesunavailable",
        C.GPU,
        G.POSSIBLE,
        RUNTIME,
        also=(C.USER_CODE, C.DEPENDENCY),
        mechanism=EXC,
        priority=1230,
    ),
    # what it runs on does not fit
    root(
        "cuda.system_not_ready",
        r"system not yet initialized|cudaerrorsystemnotready|cuda_error_system_not_ready",
        C.DEPENDENCY,
        G.LIKELY,
        RUNTIME + ": fabric manager is not running or of another version",
        also=(C.NVLINK,),
        mechanism=EXC,
        priority=1240,
    ),
    root(
        "cuda.driver_mismatch",
        r"driver/library version mismatch|driver version is insufficient|unsupported display driver"
        r" / cuda driver combination"
        r"|forward compatibility was attempted on non supported hw|the nvidia driver on your system"
        r" is too old|found no nvidia driver"
        r"|couldn't communicate with the nvidia driver|nvidia-smi has failed because it|provided"
        r" ptx was compiled with an unsupported toolchain"
        r"|no kernel image is available for execution|device kernel image is invalid|cuda"
        r" capability sm_\d{1,3} is not compatible"
        r"|api mismatch: the client has the version|nvrm: api mismatch",
        C.DEPENDENCY,
        G.NAMED,
        RUNTIME + "; nvidia NVML",
        mechanism=EXC,
        priority=1250,
    ),
    root(  # torch asks for the memory of a GPU after it got none: of a slice, or of a wrong device
        "nvml.refused",
        r"nvml_success == r internal assert",
        C.DEPENDENCY,
        G.POSSIBLE,
        "torch c10/cuda/CUDACachingAllocator.cpp; nvidia NVML under MIG",
        also=(C.GPU_OOM, C.SOFTWARE_BUG, C.USER_CODE),
        mechanism=EXC,
        priority=1255,
    ),
    root(
        "nvml.container",
        r"failed to initialize nvml: unknown error|failed to initialize nvml: insufficient"
        r" permissions",
        C.DEPENDENCY,
        G.POSSIBLE,
        "nvidia container toolkit, troubleshooting",
        also=(C.GPU,),
        priority=1260,
    ),
    # what the script asks of it
    root(
        "cuda.fork",
        r"cannot re-initialize cuda in forked subprocess",
        C.USER_CODE,
        G.NAMED,
        "torch cuda/__init__.py",
        mechanism=EXC,
        priority=1270,
    ),
    root(
        "cuda.ordinal",
        r"invalid device ordinal|cudaerrorinvaliddevice",
        C.USER_CODE,
        G.LIKELY,
        RUNTIME,
        also=(C.GPU,),
        mechanism=EXC,
        priority=1280,
    ),
    root(
        "cuda.capture",
        r"operation not permitted when stream is capturing|operation would make the legacy stream"
        r" depend on a capturing",
        C.USER_CODE,
        G.LIKELY,
        RUNTIME,
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=1290,
    ),
    root(
        "cuda.invalid_argument",
        r"cuda error: invalid argument|cuda error: invalid configuration argument|too many"
        r" resources requested for launch"
        r"|cuda error: invalid resource handle|cuda error: invalid device function",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        RUNTIME,
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=1300,
    ),
    messenger(
        "cuda.capture_earlier",
        r"operation failed due to a previous error during capture",
        RUNTIME,
        priority=1310,
    ),
    effect(
        "cuda.shutting_down",
        r"cuda error: driver shutting down|cuda driver error: driver shutting down",
        RUNTIME,
        priority=1320,
    ),
    root(
        "cublas.failed",
        (
            r"cublas_status_(?:execution_failed|internal_error|not_initialized|mapping_error"
            r"|arch_mismatch)"
        ),
        C.SOFTWARE_BUG,
        G.HINT,
        "nvidia cuBLAS status codes",
        also=(C.GPU, C.GPU_OOM),
        mechanism=EXC,
        priority=1330,
    ),
    root(
        "cublas.invalid",
        r"cublas_status_(?:invalid_value|not_supported)",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        "nvidia cuBLAS status codes",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=1340,
    ),
    root(
        "cudnn.failed",
        r"cudnn_status_(?:execution_failed|internal_error|mapping_error)|unable to find a valid"
        r" cudnn algorithm",
        C.SOFTWARE_BUG,
        G.HINT,
        "nvidia cuDNN status codes",
        also=(C.GPU, C.GPU_OOM),
        mechanism=EXC,
        priority=1350,
    ),
    root(
        "cudnn.unfit",
        (
            r"cudnn_status_(?:not_supported|bad_param|arch_mismatch|version_mismatch"
            r"|not_initialized|sublibrary)"
        ),
        C.DEPENDENCY,
        G.POSSIBLE,
        "nvidia cuDNN status codes",
        also=(C.SOFTWARE_BUG, C.USER_CODE),
        mechanism=EXC,
        priority=1360,
    ),
    root(
        "triton.failed",
        r"triton error \[cuda\]|triton\.compiler\.errors|passmanager::run failed",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        "triton driver.c and compiler",
        mechanism=EXC,
        priority=1370,
    ),
    # AMD
    root(
        "hip.hang",
        r"hw exception by gpu node|gpu hang\b|hiperrorlaunchfailure|hsa_status_error_exception",
        C.GPU,
        G.POSSIBLE,
        "amd ROCm runtime, ROCR",
        also=(C.SOFTWARE_BUG,),
        mechanism=EXC,
        priority=1380,
    ),
    root(
        "hip.fault",
        r"memory access fault by gpu node|hiperrorillegaladdress",
        C.SOFTWARE_BUG,
        G.LIKELY,
        "amd ROCm runtime, ROCR",
        also=(C.USER_CODE,),
        mechanism=EXC,
        priority=1390,
    ),
    messenger(
        "cuda.failed",
        r"cuda error: |cudnn error: |hip error: |cuda driver error|cuda runtime error|cuda"
        r" failure|cufft error",
        RUNTIME,
        failure_class=C.SOFTWARE_BUG,
        grade=G.HINT,
        mechanism=EXC,
        priority=1400,
    ),
)
