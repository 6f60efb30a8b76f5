"""Notice what is removed while a run trains: names of the vault's files, or the run's folder.

Each removal is repaired as far as possible, and reported once.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.runtime.tiers.vault import Vault


class Removals:
    """Watch the names of the vault and of the run's folder.

    missing   says what of the run's folder is not where it was, or ""
    """

    def __init__(
        self, vault: Vault, *, missing: Callable[[], str], tell: Callable[[str], None]
    ) -> None:
        self._vault = vault
        self._missing = missing
        self._tell = tell
        self._vault_reported = False
        self._was_missing = ""
        self._joined: set[int] = set()  # workers whose files are held

    @property
    def vault_is_gone(self) -> bool:
        """Return True if the vault's folder has no name any more. This costs one system call."""
        return self._vault.keeper is not None and self._vault.keeper.is_gone

    def is_first_of(self, worker: int) -> bool:
        """Return True the first time that `worker` is in a generation: its files are new.

        To look at all files at each regroup would delay each recovery.
        """
        if worker in self._joined:
            return False
        self._joined.add(worker)
        return True

    def hold_vault(self) -> None:
        """Hold the vault's files, and put back those whose names were removed.

        Supervision boundary: if shared memory takes no link, that is reported, and stops nothing.
        """
        if self._vault.keeper is None:
            return
        try:
            lost = self._vault.keeper.look()
        except OSError as error:
            self._say_of_vault(f"it cannot be put back: {error.strerror}")
            return
        if lost:
            how = "its files are held open and have their names again, and training loses nothing"
            self._say_of_vault(f"{how} as long as this launcher lives ({len(lost)} files)")

    def _say_of_vault(self, how: str) -> None:
        """Warn once, because removals may affect many files one after the other."""
        if not self._vault_reported:
            self._vault_reported = True
            causes = "a person, RemoveIPC of systemd-logind, or systemd-tmpfiles"
            self._tell(f"warning: {self._vault.folder} was removed (by {causes}): {how}")

    def look_for_folder(self) -> None:
        """Warn once if the run's folder is not what was opened any more.

        Files that are open are still written, but nobody finds them.
        """
        missing, before = self._missing(), self._was_missing
        self._was_missing = missing
        if missing and not before:
            kept = (
                "ranks and shared memory keep the newest state, and checkpoints go where"
                " --checkpoint-dir says"
            )
            self._tell(
                f"warning: {missing}: training goes on, and what is written there is lost for"
                f" `outlast report`; {kept}"
            )
