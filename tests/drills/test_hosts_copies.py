"""FSDP2 on several hosts, each of which keeps copies for others, with spare hosts. Hosts are lost.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from outlast.model.limits import SLOTS_COUNT
from outlast.model.manifest import SEAL_BYTES, unpack_seal
from outlast.runtime.drill.drill_hosts import Hosts, may_be_made, program_of
from outlast.runtime.drill.drill_images import DamagedImages
from outlast.runtime.drill.drill_looks import LookedAtNode, LookedAtRun
from outlast.runtime.drill.striking import RunProcess, Target
from outlast.runtime.tiers.held_copies import HeldCopies
from outlast.runtime.tiers.held_parity import HeldParity
from outlast.runtime.tiers.vault import Vault
from tests.drills._host_run import HostRun
from tests.drills._run import CalmRun

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(280),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
STEPS, HOSTS = 30, 3


def at_step_10(
    hosts: Hosts,
    folder: Path,
    *given: object,
    keep: str,
    nodes: int,
    spares: int,
    step_s: str = "0.1",
    within_s: float = 240.0,
    domains: tuple[str, ...] = (),
) -> HostRun:
    """Start an FSDP2 run of one rank on each of `nodes` hosts, and return it at its step 10.

    given   arguments of the script
    keep    where images are kept at each step
    """
    run = HostRun(
        hosts,
        folder,
        *given,
        "--step-s",
        step_s,
        nodes=nodes,
        spares=spares,
        flags=("--nproc-per-node", "1", "--lease", "2", "--keep", f"{keep}:step"),
        within_s=within_s,
        script=("fsdp.py",),
        domains=domains,
    )
    run.until(lambda: min(map(run.step_of, range(nodes))) >= 10, "step 10")
    return run


@pytest.mark.parametrize("host", [1, 0], ids=["another host", "the host that leads"])
@pytest.mark.parametrize("way", ["main", "respawn"])
def test_fsdp2_goes_on_from_copies_at_peers_when_a_host_is_lost(
    tmp_path: Path, calm_run: CalmRun, host: int, way: str
) -> None:
    """Method: all processes of a host are killed at step 10, and its shared memory is lost. Its
    rank goes on from the copy that another host keeps, dropout included: no committed step is lost,
    none is committed twice on a rank, and the weights are those of an undisturbed run on a single
    host.
    """
    calm = calm_run("fsdp.py", "--steps", STEPS, "--way", way, workers=HOSTS).digests
    given = ("--steps", STEPS, "--way", way)
    with Hosts(HOSTS + 1) as hosts:
        run = at_step_10(hosts, tmp_path, *given, keep="peers=1", nodes=HOSTS, spares=1)
        hosts.kill(host)
        del run.processes[host]
        goes_on_from_a_copy(run, [host], calm)


def goes_on_from_a_copy(run: HostRun, lost: list[int], calm: dict[int, str]) -> None:
    """Check that a run has lost some of its hosts, one rank each, and nothing else.

    calm   the digests of an undisturbed run
    """
    left = set(run.processes)
    codes = run.finish()
    assert codes == dict.fromkeys(left, 0), f"{codes}\n{run}"
    report = run.report()
    found = report["interruptions"]
    assert sorted({rank for one in found for rank in one["ranks"]}) == lost, f"{found}\n{run}"
    assert sum(one["steps_lost"] for one in found) == 0, f"{found}\n{run}"
    assert sum(one["steps_repeated"] for one in found) <= 2, found
    how = ("another node keeps a copy", "rebuilt from parity")
    assert any(one["reason"].count(said) for one in found for said in how), f"{found}\n{run}"
    assert report["steps"] == STEPS
    ends_like(calm, run)


def ends_like(calm: dict[int, str], run: HostRun) -> None:
    """Check that all ranks end with the digests of an undisturbed run, and commit no step twice."""
    digests = [line.split()[2] for line in str(run).splitlines() if line.startswith("digest ")]
    assert (len(digests), {*digests}) == (len(calm), {*calm.values()}), str(run)
    for rank in range(len(calm)):
        steps = [step for of, step, _ in run.commits if of == rank]
        assert (len(steps), steps[-1]) == (len({*steps}), STEPS), f"rank {rank}: {steps}\n{run}"


def damage(shared_memory: Path) -> int:
    """Flip a bit in each copy of rank 1's images on a host, and return how many there are."""
    count = 0
    for folder in shared_memory.glob("**/copy-1"):
        seals = (folder / "seals").read_bytes()
        for slot in range(SLOTS_COUNT):
            seal = unpack_seal(seals[slot * SEAL_BYTES : (slot + 1) * SEAL_BYTES])
            if seal is None:
                continue
            with (folder / f"slot-{slot}").open("r+b") as file:
                file.seek(seal.length - 1)
                byte = file.read(1)
                file.seek(seal.length - 1)
                file.write(bytes([byte[0] ^ 1]))
            count += 1
    return count


@pytest.mark.parametrize(
    ("lost", "damaged"),
    [([1, 2], False), ([0, 1], False), ([1], True)],
    ids=["two at once", "two at once, one of which leads", "one, and a copy is damaged"],
)
def test_fsdp2_goes_on_from_whichever_copy_is_left_under_peers_2(
    tmp_path: Path, calm_run: CalmRun, lost: list[int], damaged: bool
) -> None:
    """Method: two neighbouring hosts of four are killed at step 10, so one copy of the first one's
    image is lost with the second. Or one host is killed, and in one of the two copies of its image
    a bit flips: the run names it, and goes on from the other one.
    """
    count = 4
    given = ("--steps", STEPS, "--way", "main", "--batch", 2 * count)
    calm = calm_run("fsdp.py", *given, workers=count).digests
    with Hosts(count + len(lost)) as hosts:
        run = at_step_10(
            hosts, tmp_path, *given, keep="peers=2", nodes=count, spares=len(lost), within_s=260.0
        )
        for host in lost:
            hosts.kill(host)
            del run.processes[host]
        if damaged:
            assert damage(hosts.shared_memory(2)) > 0, str(run)
        goes_on_from_a_copy(run, lost, calm)
        assert ("was refused" in str(run)) is damaged, str(run)


@pytest.mark.parametrize("keep", ["peers=1", "parity=2+2"])
def test_the_loss_of_a_rack_costs_no_step_if_hosts_name_their_domains(
    tmp_path: Path, calm_run: CalmRun, keep: str
) -> None:
    """Method: four hosts are two racks, and the spare ones a third. Both hosts of the second rack
    are killed at step 10. They are neighbours, so with one copy and without domains the first one's
    image would be lost with the other.
    """
    count, lost = 4, [2, 3]
    given = ("--steps", STEPS, "--way", "main", "--batch", 2 * count)
    calm = calm_run("fsdp.py", *given, workers=count).digests
    domains = ("red", "red", "blue", "blue", "green", "green")
    with Hosts(count + 2) as hosts:
        run = at_step_10(
            hosts,
            tmp_path,
            *given,
            keep=keep,
            nodes=count,
            spares=2,
            within_s=260.0,
            domains=domains,
        )
        for host in lost:
            hosts.kill(host)
            del run.processes[host]
        goes_on_from_a_copy(run, lost, calm)
        assert "would take" not in str(run), "no other loss of a domain would have cost anything"


@pytest.mark.parametrize(
    ("keep", "torn", "way"),
    [
        ("peers=1", False, "main"),
        ("peers=1", True, "respawn"),
        ("parity=2+1", True, "main"),
    ],
)
def test_a_damaged_image_costs_no_step_if_other_nodes_can_restore_it(
    tmp_path: Path, calm_run: CalmRun, keep: str, torn: bool, way: str
) -> None:
    """Method: the fault of drills damages the newest image in the vault of rank 1, and kills the
    rank. Its host lives, so the rank first begins from its own image, and refuses it. Then it goes
    on from the same step, by what other hosts keep of it. The verdict names the image.
    """
    given = ("--steps", STEPS, "--way", way)
    calm = calm_run("fsdp.py", *given, workers=HOSTS).digests
    with Hosts(HOSTS) as hosts:
        run = at_step_10(hosts, tmp_path, *given, keep=keep, nodes=HOSTS, spares=0, step_s="0.2")
        step = strike_image(run, hosts, rank=1, torn=torn)
        codes = run.finish()
        assert codes == dict.fromkeys(range(HOSTS), 0), f"{codes}\n{run}"
        report = run.report()
        found = report["interruptions"]
        assert [one["mechanism"] for one in found] == ["signal", "corrupt"], f"{found}\n{run}"
        assert sum(one["steps_lost"] for one in found) == 0, f"{found}\n{run}"
        said = f"rank 1's own image of step {step} was refused"
        assert said in found[1]["reason"], found
        assert "does not match its seal" in found[1]["reason"], found
        instead = "another node keeps a copy" if "peers" in keep else "it is rebuilt from parity"
        assert f", and {instead}" in found[1]["reason"], found
        assert f"warning: {said}: " in run.output(0), str(run)
        ends_like(calm, run)


def strike_image(run: HostRun, hosts: Hosts, *, rank: int, torn: bool) -> int:
    """Damage the newest image of a rank, and kill the rank. Return the step of the image.

    Each rank is on the host of its number. The rank is stopped at a moment at which the other hosts
    have what restores that image: the step would not count as committed before.
    """
    launcher = program_of(run.processes[rank])
    assert launcher, str(run)
    target = Target(launcher)
    vaults = [vault_on(hosts, host) for host in range(HOSTS)]
    others = [vault for host, vault in enumerate(vaults) if host != rank]
    kept = [(HeldCopies(vault), HeldParity(vault)) for vault in others]

    struck: list[RunProcess] = []

    def stopped() -> bool:
        process = target.find(f"outlast-rank{rank}")
        if process is None or not target.send(process, signal.SIGSTOP):
            return False
        if vaults[rank].steps(rank)[0] in steps_kept(kept, rank):
            struck.append(process)
            return True
        target.send(process, signal.SIGCONT)  # it trains until the next look
        return False

    run.until(stopped, "a copy of an image")
    step = vaults[rank].steps(rank)[0]
    seen = LookedAtRun((LookedAtNode(vaults[rank], struck),), Path("none"))
    assert DamagedImages(lambda: seen).strike(target, struck[0], torn=torn), "it was gone"
    for one in (*vaults, *(held for both in kept for held in both)):
        one.close()
    return step


def vault_on(hosts: Hosts, host: int) -> Vault:
    (owner,) = hosts.shared_memory(host).glob("*/owner")
    return Vault.open(owner.parent)


def steps_kept(kept: list[tuple[HeldCopies, HeldParity]], rank: int) -> set[int]:
    """Return the steps of which other hosts can restore the image of `rank`."""
    copies = {step for held, _ in kept for step in held.steps(rank)}
    rows = [row for _, held in kept for stripe in held.all_rows() for row in stripe.rows]
    parts = [{row.step for row in rows if row.ranks[place] == rank} for place in (0, 1) if rows]
    return copies.union(set.intersection(*parts) if parts else ())
