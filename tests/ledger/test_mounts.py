"""On what file system a folder lies, by a table of mounts that is given as text, and where the
ledger lies because of that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.errors import UsageError
from outlast.runtime.folders import mounts
from outlast.runtime.folders.mounts import Mount, is_network, kind_at, parse
from outlast.runtime.folders.state_folder import state_root

TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
41 27 0:50 / /users rw,relatime shared:20 master:3 - nfs4 filer:/users rw,vers=4.2
42 27 0:51 / /scratch rw - lustre 10.0.0.1@o2ib:/fs rw
43 42 8:1 / /scratch/local rw - xfs /dev/nvme0n1 rw
44 27 0:52 / /net/with\040space rw - fuse.sshfs host:/x rw
45 27 0:53 / /data rw - autofs /etc/auto.data rw
46 45 0:54 / /data rw - nfs filer:/data rw
47 27 0:55 / /stacked rw - nfs filer:/stacked rw
48 47 0:56 / /stacked rw - tmpfs tmpfs rw
a line of another kind
49 27 0:57 / /cut rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/runs", "ext4"),
        ("/users/a/runs", "nfs4"),
        ("/userspace", "ext4"),
        ("/scratch/runs/x", "lustre"),
        ("/scratch/local/x", "xfs"),
        ("/net/with space/runs", "fuse.sshfs"),
        ("/data", "nfs"),
        ("/stacked/x", "tmpfs"),
        ("/cut/x", "ext4"),
    ],
)
def test_the_deepest_mount_of_a_path_counts(path: str, kind: str) -> None:
    """The last one of several at a point hides the others. Other lines are left out."""
    assert kind_at(path, parse(TABLE)) == kind


def test_nothing_is_known_without_a_table() -> None:
    assert parse("") == []
    assert kind_at("/users", []) == ""
    assert not is_network("")


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *((one, True) for one in ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "9p", "cifs")),
        *((one, True) for one in ("fuse", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs")),
        *((one, False) for one in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs")),
        *((one, False) for one in ("fuseblk", "fuse.fuse-overlayfs", "fusectl")),
    ],
)
def test_kinds_that_other_machines_may_share(kind: str, network: bool) -> None:
    assert is_network(kind) == network


def test_a_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that does not exist yet lies where its nearest parent does."""
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "TABLE", table)
    assert mounts.network_kind(tmp_path) == "", "there is no table"
    table.write_text(f"1 1 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path}/far rw - nfs x rw\n")
    assert mounts.network_kind(tmp_path / "link" / "new" / "run") == "nfs"
    assert mounts.network_kind(tmp_path / "near") == ""


# --- where the ledger lies ------------------------------------------------------------------------


def kinds(*network: str) -> object:
    """Return a function like `network_kind`, by which these folders are on NFS."""
    table = [Mount("/", "ext4"), *(Mount(one, "nfs") for one in network)]

    def kind_of(path: Path) -> str:
        kind = kind_at(str(path), table)
        return kind if is_network(kind) else ""

    return kind_of


@pytest.mark.parametrize(
    ("network", "given", "root"),
    [
        ((), "", None),
        ((), "/state", "/state"),
        (("/shared",), "", "/users/a/.local/state/outlast"),
        (("/shared", "/users"), "", "/var/tmp/outlast-7"),
        (("/shared", "/users"), "/state", "/state"),
    ],
)
def test_the_ledger_lies_on_a_disk_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, network: tuple[str, ...], given: str, root: str | None
) -> None:
    """Without --state-dir it lies in the run's folder, unless that is on a network file system."""
    monkeypatch.setenv("HOME", "/users/a")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 7)
    kind_of = kinds(*network)
    found = state_root(given, Path("/shared/runs/x"), kind_of=kind_of)  # type: ignore[arg-type]
    assert found == (None if root is None else Path(root))


def test_the_variable_names_the_users_folder_of_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path in it does not count, as its specification says."""
    monkeypatch.setenv("HOME", "/users/a")
    kind_of = kinds("/shared")
    for given, root in (("/disk", "/disk/outlast"), ("disk", "/users/a/.local/state/outlast")):
        monkeypatch.setenv("XDG_STATE_HOME", given)
        found = state_root("", Path("/shared/x"), kind_of=kind_of)  # type: ignore[arg-type]
        assert found == Path(root)


@pytest.mark.parametrize(
    ("network", "given", "said"),
    [
        (("/state",), "/state", "--state-dir /state lies on nfs"),
        (("/shared", "/users", "/var"), "", "and so do the home folder and /var/tmp"),
    ],
)
def test_a_ledger_without_a_disk_is_refused(
    monkeypatch: pytest.MonkeyPatch, network: tuple[str, ...], given: str, said: str
) -> None:
    monkeypatch.setenv("HOME", "/users/a")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    kind_of = kinds(*network)
    with pytest.raises(UsageError) as caught:
        state_root(given, Path("/shared/x"), kind_of=kind_of)  # type: ignore[arg-type]
    assert said in caught.value.message
    assert "disk of this machine" in str(caught.value.hint)
