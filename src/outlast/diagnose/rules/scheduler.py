"""Slurm, Kubernetes, clouds and the init system: why a job was ended from outside.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, effect, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
BATCH = "lsf termination reasons (bhist, bacct); openpbs src/resmom/mom_mach.c"
SLURM, STATES = "slurm src/slurmd/slurmstepd, src/srun", "slurm job state codes (squeue, sacct)"
KUBE = "kubernetes pod status reasons, events, taints"
SIGNAL, EXIT, LOST = Mechanism.SIGNAL, Mechanism.EXIT, Mechanism.LOST_CONTACT

RULES: tuple[Rule, ...] = (
    # memory
    root(
        "slurm.oom",
        r"oom[-_]kill event|detected \d+ oom|exceeded (?:job|step) memory limit|oom[ -]killed|some"
        r" of (?:your processes"
        r"|the step tasks) (?:may )?have been (?:killed|oom)|\bout_of_memory\b(?!\+0x)|task.{0,40}:"
        r" out of memory|\bout_of_me\b"
        r"|exceeded .{0,20}memory limit.{0,30}being killed",
        C.HOST_MEMORY,
        G.NAMED,
        SLURM + "; " + STATES,
        mechanism=SIGNAL,
        priority=6010,
    ),
    root(
        "batch.memory",
        r"\bterm_(?:memlimit|swap)\b|pbs: job killed: (?:p?v?mem)\b|cgroup mem(?:sw)? limit"
        r" exceeded",
        C.HOST_MEMORY,
        G.NAMED,
        BATCH,
        mechanism=SIGNAL,
        priority=6015,
    ),
    root(
        "kube.oom",
        r"\boomkilled\b(?!\"? ?: ?false)|systemoom|oomkilling|memory limit exceeded.{0,20}pod",
        C.HOST_MEMORY,
        G.NAMED,
        KUBE,
        mechanism=SIGNAL,
        priority=6020,
    ),
    root(
        "kube.evicted_memory",
        r"low on resource: memory|memorypressure.{0,20}true|nodehasinsufficientmemory",
        C.HOST_MEMORY,
        G.LIKELY,
        KUBE,
        mechanism=SIGNAL,
        priority=6030,
    ),
    root(
        "kube.evicted_disk",
        r"low on resource: ephemeral-storage|ephemeral local storage usage"
        r" exceeds|diskpressure.{0,20}true|nodehasdiskpressure"
        r"|usage of emptydir volume .{0,60}exceeds",
        C.STORAGE,
        G.NAMED,
        KUBE,
        mechanism=SIGNAL,
        priority=6040,
    ),
    # somebody took the machine
    root(
        "slurm.preempted",
        r"due to preemption|(?:job|task|step|node|vm|pod|instance)\b[^.]{0,60}"
        r" preempted\b|\bpreempted {1,12}\d{1,4}:\d"
        r"|state[=: ]{1,2}preempted|job is preempted|requeued due to|due to job"
        r" requeue|job_requeue|\brequeue(?:d|ing)? (?:job|in|by|due)"
        r"|bypassing signal|caught signal sigusr\d on",
        C.HOST_MAINTENANCE,
        G.LIKELY,
        STATES + "; submitit job_environment.py",
        mechanism=SIGNAL,
        priority=6050,
    ),
    root(
        "slurm.reboot",
        r"rebooting node|reboot requested|node .{0,60}(?:drained|draining|drain)"
        r" .{0,40}(?:maint|reboot)|maintenance (?:reservation|window"
        r"|event|mode)|\bmaint\b.{0,20}(?:reservation|state)|scheduled"
        r" (?:maintenance|event)|resvmaint",
        C.HOST_MAINTENANCE,
        G.LIKELY,
        STATES,
        priority=6060,
    ),
    root(
        "cloud.maintenance",
        r"terminate_on_host_maintenance|host ?maintenance|migrate_on_host|instance (?:is )?(?:being"
        r" )?(?:terminated|retire|preempt"
        r"|reclaimed|stopped for)|spot (?:instance"
        r" )?(?:interruption|termination|request)|instance-action|rebalance recommendation"
        r"|compute\.instances\.preempted"
        r"|[\"']eventtype[\"'] ?: ?[\"'](?:preempt|terminate|reboot|redeploy|freeze)"
        r"|scheduled"
        r" event.{0,40}(?:reboot|redeploy|freeze|terminate|preempt)|instance-(?:stop"
        r"|retirement|reboot)|system-(?:reboot"
        r"|maintenance)"
        r"|(?:preempt|reboot|redeploy|freeze|terminate)scheduled\b|scheduled for preemption",
        C.HOST_MAINTENANCE,
        G.NAMED,
        "cloud maintenance notices (aws, gce, azure scheduled events)",
        mechanism=LOST,
        priority=6070,
    ),
    root(
        "kube.drained",
        r"disruptiontarget|preemptionbyscheduler|evictionbyevictionapi"
        r"|terminationbykubelet|preempted by|preempting|nodeschedulable|nodenotschedulable"
        r"|cordon(?:ed|ing)|drain(?:ed|ing) node|evicting pod|imminent node shutdown"
        r"|rejected as the node is shutting down"
        r"|(?:reason|status)[\"']?: {0,4}[\"']?evicted|pod .{0,80}evicted",
        C.HOST_MAINTENANCE,
        G.LIKELY,
        KUBE,
        mechanism=SIGNAL,
        priority=6080,
    ),
    root(
        "host.shutdown",
        r"system is (?:going down|rebooting|powering down)|systemd-shutdown|reached target"
        r" (?:reboot|power-off|shutdown)"
        r"|reboot: (?:restarting system|power down|system halted)|the system will (?:reboot|power"
        r" off)|systemd.{0,20}: (?:shutting down"
        r"|rebooting|powering off)|acpi: .{0,30}power"
        r" button|unattended-upgrade.{0,60}(?:reboot|restart)",
        C.HOST_MAINTENANCE,
        G.LIKELY,
        "systemd, messages of shutdown",
        mechanism=LOST,
        priority=6090,
    ),
    # the machine went away
    messenger(
        "slurm.node_failure",
        r"due to node failure|\bnode_fail\b|node failure on|not responding, setting down|nodes?"
        r" .{0,80}not responding|step launch failed"
        r"|communication connection failure|lost (?:connection|contact) (?:with|to)"
        r" (?:node|slurmd)|killed by node failure"
        r"|zero bytes were transmitted or received",
        SLURM,
        failure_class=C.CHASSIS,
        grade=G.HINT,
        mechanism=LOST,
        priority=6100,
    ),
    messenger(
        "kube.node_lost",
        r"nodenotready|node is not ready|(?<!key:"
        r" )node\.kubernetes\.io/(?:unreachable|not-ready)(?!:[a-z]{1,20} (?:op=|for"
        r" \d))|nodestatusunknown"
        r"|node .{0,60}status is now: nodenotready|nodelost|kubelet stopped posting node"
        r" status|kubeletnotready",
        KUBE,
        failure_class=C.CHASSIS,
        grade=G.HINT,
        mechanism=LOST,
        priority=6110,
    ),
    messenger(  # of a node that is not ready or not reached, unless somebody taints it
        "kube.tainted",
        r"deletionbytaintmanager|taintmanagereviction|marking for deletion pod",
        KUBE + "; pkg/controller/tainteviction",
        failure_class=C.CHASSIS,
        grade=G.HINT,
        mechanism=LOST,
        priority=6105,
    ),
    root(
        "kube.gpu_unhealthy",
        r"no healthy devices present|unhealthy devices?"
        r" nvidia\.com/gpu|unexpectedadmissionerror|marking (?:device|gpu).{0,40}unhealthy"
        r"|device .{0,60}(?:is|as)"
        r" unhealthy|xidcriticalerror|(?<![\w.-])gpus?_?(?:(?![\w.-]).{0,30})?unhealthy"
        r"|unhealthy.{0,30}(?<![\w.-])gpus?(?![\w.-])|gpu(?:_|-|"
        r" )?(?:error|failed|fault"
        r"|health).{0,40}(?:drain|cordon|down)"
        r"|drain.{0,60}(?<![\w.-])gpus?(?![\w.-])|gpu count .{0,60}(?:mismatch|expected|lower)"
        r"|gres/gpu count .{0,40}(?:reported lower|too low)",
        C.GPU,
        G.LIKELY,
        "nvidia k8s-device-plugin health.go; slurm gres",
        also=(C.HBM, C.CHASSIS),
        priority=6120,
    ),
    advice(  # it tells that Slurm runs the job
        "slurm.node_state",
        r"(?:drain|update)_nodes?: node |validate_node_specs:"
        r"|node \S{1,80} state set to (?:drain|down)",
        "slurm src/slurmctld/node_mgr.c, src/slurmd",
        priority=6125,
    ),
    messenger(  # Slurm's own daemons, which start and end a job
        "slurm.daemons",
        r"slurm_receive_msgs?: .{0,160}failed: |socket timed out on send/recv operation|task launch"
        r" for \S{1,30} failed on node|munge decode failed",
        "slurm src/common/slurm_protocol_api.c, src/api/step_launch.c",
        mechanism=LOST,
        priority=6127,
    ),
    # limits and people
    root(  # the line says what ended it; other lines say whether it was slow or stood still before
        "slurm.time",
        r"due to time limit|time limit exhausted|job has timed out|deadlineexceeded|active on the"
        r" node longer than the specified deadline"
        r"|state=timeout|\bjobstate=timeout",
        C.HOST_MAINTENANCE,
        G.POSSIBLE,
        SLURM + "; " + KUBE,
        also=(C.USER_CODE, C.SOFTWARE_BUG, C.NETWORK, C.STRAGGLER),
        mechanism=SIGNAL,
        priority=6130,
    ),
    root(
        "batch.time",
        r"\bterm_(?:runlimit|deadline|cpulimit)\b|pbs: job killed: (?:walltime|cput?)\b",
        C.HOST_MAINTENANCE,
        G.POSSIBLE,
        BATCH,
        also=(C.USER_CODE, C.SOFTWARE_BUG, C.NETWORK, C.STRAGGLER),
        mechanism=SIGNAL,
        priority=6132,
    ),
    messenger(
        "batch.cancelled",
        r"\bterm_(?:(?:force_)?(?:owner|admin)|external_signal|requeue_(?:owner|admin))\b"
        r"|job deleted at request of",
        BATCH,
        mechanism=SIGNAL,
        priority=6133,
    ),
    messenger(  # a step is cancelled too when one of its tasks fails, a job only by somebody
        "slurm.cancelled_job",
        r"\*\*\* job \d{1,12} on [^*]{0,80} cancelled at \S{1,40} \*\*\*|cancelled by \d+"
        r"|jobstate=cancelled",
        SLURM + "; " + STATES,
        mechanism=SIGNAL,
        priority=6135,
    ),
    messenger(
        "stopped.by_hand",
        r"keyboardinterrupt",
        "python signal.default_int_handler: Ctrl-C, or a launcher that passes it on",
        mechanism=SIGNAL,
        priority=6137,
    ),
    messenger(
        "slurm.cancelled",
        r"cancelled at|\bcancelled\b|job/step already"
        r" completing|step cancelled",
        SLURM,
        mechanism=SIGNAL,
        priority=6140,
    ),
    messenger(
        "slurm.kill",
        r"srun: error: .{0,120}: killed|task \d+.{0,40}: killed|exited with signal"
        r" 9|exitcode=0:9|terminated by signal 9",
        SLURM,
        failure_class=C.HOST_MEMORY,
        grade=G.HINT,
        mechanism=SIGNAL,
        priority=6150,
    ),
    messenger(
        "slurm.signals",
        r"srun: error: .{0,120}: aborted",
        SLURM,
        mechanism=SIGNAL,
        priority=6160,
    ),
    effect(
        "slurm.terminated",
        r"srun: error: .{0,120}: (?:terminated|exited with exit code)|srun: (?:terminating|force"
        r" terminated|job step aborted|launch/slurm)"
        r"|slurmstepd: error: \*\*\*|job step aborted: waiting|kill(?:on)?badexit|task launch"
        r" for|mpi/pmi",
        SLURM,
        priority=6170,
    ),
    messenger(
        "slurm.failed",
        r"\bnonzeroexitcode\b|jobstate=failed|state=failed|\breason=raisedsignal",
        STATES,
        mechanism=EXIT,
        priority=6180,
    ),
    advice(
        "kube.started",
        r"\bnormal +started +\S|started container\b",
        KUBE + ": volumes are mounted before a container starts",
        priority=6185,
    ),
    advice(
        "kube.finished",
        r"^\s{0,16}finished: {2,12}\w{3}, \d\d \w{3} \d{4} ",
        KUBE + "; kubectl describe",
        priority=6187,
    ),
    effect(
        "kube.backoff",
        r"crashloopbackoff|back-off restarting failed|containerstatusunknown|exit code: \d+|restart"
        r" count|backofflimitexceeded"
        r"|podfailurepolicy",
        KUBE,
        priority=6190,
    ),
    root(
        "kube.unschedulable",
        r"failedscheduling|insufficient nvidia\.com/gpu|insufficient (?:cpu|memory)",
        C.USER_CODE,
        G.HINT,
        KUBE,
        also=(C.GPU,),
        priority=6200,
    ),
)
