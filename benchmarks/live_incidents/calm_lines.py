"""What healthy training prints: lines of tools that have the words of a failure and tell of none.

`LOOPS` are how programs report a step. `NOISE` are single lines. `PARAGRAPHS` are several lines
that belong together, such as a traceback that the program logs before it goes on. `KERNEL` are
lines of a kernel's log. Each is written after the output of a tool in use.
"""

from __future__ import annotations

LOOPS = (
    "[{day} {clock}] [INFO] step {step} loss {loss:.4f} lr 3.0e-04 grad_norm {norm:.2f}",
    "{{'loss': {loss:.4f}, 'grad_norm': {norm:.3f}, 'learning_rate': 5e-05, 'epoch': {epoch:.2f}}}",
    " iteration {step:8d}/ 500000 | consumed samples: {samples} | elapsed time per iteration (ms):"
    " 812.3 | learning rate: 3.000E-04 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm:"
    " {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "step:{step}/4578 train_loss:{loss:.4f} train_time:{ms}ms step_avg:97.42ms",
    "Epoch 3:  {percent:2d}%|####      | {step}/9000 [12:04<1:12:01,  1.53it/s, v_num=4,"
    " train_loss={loss:.2f}]",
    "{day} {clock},412 - root - INFO - step: {step:2d}  loss: {loss:.5f}  memory: 71.20GiB(90.01%)"
    "  tps: 8,212  mfu: 41.20%",
    "[default0]:step {step} | loss {loss:.3f} | {norm:.2f} tok/s",
    '0: {day} {clock} | train_inner | INFO | {{"epoch": 2, "loss": "{loss:.3f}", "num_updates":'
    ' "{step}", "gnorm": "{norm:.2f}", "train_wall": "412"}}',
)
NOISE = (
    "/usr/lib/python3/dist-packages/torch/optim/lr_scheduler.py:62: UserWarning: The verbose"
    " parameter is deprecated. Please use get_last_lr().",
    "[rank0]:[W1124 03:00:02.112233 77 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 0]  using"
    " GPU 0 to perform barrier as devices used by this process are currently unknown. This can"
    " potentially cause a hang if this rank to GPU mapping is incorrect.",
    "[W socket.cpp:464] [c10d] The client socket cannot be initialized to connect to"
    " [localhost]:29500 (errno: 97 - Address family not supported by protocol).",
    "[W reducer.cpp:1389] Warning: find_unused_parameters=True was specified in DDP constructor,"
    " but did not find any unused parameters in the forward pass.",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768.0",
    "WARNING: loss is nan at step {step}, skipping this batch",
    "WARNING:train:grad norm is inf, skipping the update ({step})",
    "Non-finite loss in micro batch 3, ignored (12 so far)",
    "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out."
    " (read timeout=10)\"))' thrown while requesting HEAD https://huggingface.co/gpt2/resolve/main"
    "/config.json, retrying in 1s [Retry 1/5].",
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "wandb: WARNING A graphql request initiated by the public wandb API timed out"
    " (timeout=19 sec).",
    "urllib3.connectionpool WARNING Retrying (Retry(total=2, connect=None, read=None)) after"
    " connection broken by 'ConnectionResetError(104, 'Connection reset by peer')': /shards/17.tar",
    "botocore.retries: SlowDown received, retrying after 0.42 s (attempt 2)",
    "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    "n1:4242:4299 [0] NCCL INFO comm 0x55f rank 0 nranks 8 cudaDev 0 busId 1b000 - Init COMPLETE",
    "n1:4242:4242 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid"
    " your system being overloaded, please further tune the variable for optimal performance",
    "apex is not installed (No module named 'apex'), falling back to torch.optim.AdamW",
    "flash_attn could not be imported (cannot import name 'flash_attn_func'), falling back to sdpa",
    "/usr/lib/python3/dist-packages/torchvision/io/image.py:13: UserWarning: Failed to load image"
    " Python extension: 'libc10_cuda.so: cannot open shared object file: No such file or"
    " directory'If you don't plan on using image functionality from `torchvision.io`, you can"
    " ignore this warning.",
    "This DataLoader will create 32 worker processes in total. Our suggested max number of worker"
    " in current system is 16, DataLoader may run slow or even freeze",
    "W1124 03:00:10.2 77 torch/_inductor/utils.py:1250] [0/0] Not enough SMs to use"
    " max_autotune_gemm mode",
    "PIL.UnidentifiedImageError: cannot identify image file '00017/421.jpg', skipping (3 so far)",
    "tarfile.ReadError: unexpected end of data in shard 00042.tar, skipped",
    "eval: loss 2.3124, 0 errors, 0 timeouts, 0 out of memory",
    "CUDA memory: 71.2 GiB allocated, 3 alloc retries, num_ooms 0",
    "checkpoint step {step}: 64 of 64 shards written, 0 failed, took 41.2 s",
    "health: ECC uncorrectable 0, remapped rows 0, Xid none, NVLink errors 0",
    "W1124 03:00:12.0 77 torch/distributed/run.py:792] *****************************************",
    "The `load_in_8bit` argument is deprecated. ValueError will be raised in a future version.",
    "Some weights of the model checkpoint were not used: ['lm_head.bias'] - this IS expected if you"
    " are initializing from another task",
    "slurmstepd: info: task_p_pre_launch: Using sched_affinity for tasks",
    "srun: job 4182233 queued and waiting for resources",
    "signal handlers for SIGTERM and SIGUSR1 installed; preemption will save a checkpoint",
    "Timeout for collectives is 1800 s; watchdog on, heartbeat 480 s",
    "retry policy: 5 attempts on ConnectionError, TimeoutError, OSError",
)
RULE = "=" * 100 + "\n"
# what a program prints of its own source, as some do at their start
SOURCE = """\
import torch
def check(loss, step):
    if torch.isnan(loss):
        raise ValueError(f"loss is nan at step {step}")
    assert torch.isfinite(loss), f"loss is inf: {loss}"
try:
    import flash_attn
except ImportError:
    raise ModuleNotFoundError("No module named 'flash_attn'")
except torch.cuda.OutOfMemoryError as e:
    print("CUDA out of memory. Tried to allocate", e)
except OSError:  # No space left on device
    logger.error("RuntimeError: uncorrectable ECC error encountered")
"""
PARAGRAPHS = (
    """\
WARNING:data:shard 00017 could not be read, attempt 1 of 5
Traceback (most recent call last):
  File "/app/data.py", line 44, in fetch
    raw = session.get(url, timeout=10)
  File "/usr/lib/python3/dist-packages/requests/sessions.py", line 602, in get
    return self.request("GET", url, **kwargs)
requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end'))
INFO:data:shard 00017 read after 2 attempts
""",
    """\
ERROR:train:evaluation was left out
Traceback (most recent call last):
  File "/app/train.py", line 212, in maybe_evaluate
    evaluate(model, batch)
  File "/app/evaluate.py", line 31, in evaluate
    raise ValueError(f"no validation set of {name}")
ValueError: no validation set of books
INFO:train:training goes on
""",
    """\
WARNING: this sample does not fit, halving the micro batch
Traceback (most recent call last):
  File "/app/train.py", line 90, in forward_backward
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity \
of 79.11 GiB of which 1.13 GiB is free.
INFO: micro batch 8 -> 4
""",
    f"{RULE}{SOURCE}{RULE}",
    """\
defaults:
  on_error: raise  # RuntimeError: CUDA error
  oom: {retry: true, message: "CUDA out of memory"}
  nccl: {timeout_s: 1800, on_timeout: abort}
""",
    """\
diff --git a/train.py b/train.py
-        raise RuntimeError("No space left on device")
+        raise OSError(errno.ENOSPC, "No space left on device")
""",
)
KERNEL = (
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "pcieport 0000:40:01.1: AER: Corrected error received: 0000:43:00.0",
    "nvidia-peermem nvidia-peermem: module verification: tainting kernel",
    "mlx5_core 0000:1a:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:1a:00.0 ib0: Link up",
    "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Errors: remount-ro",
    "perf: interrupt took too long (2511 > 2500), lowering kernel.perf_event_max_sample_rate",
    'audit: type=1400 audit(1): apparmor="STATUS" operation="profile_load"',
)
