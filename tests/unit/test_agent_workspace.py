"""The workspace of an agent: what a snapshot holds, and that no trick makes a protected file count."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_stage import CHECK, AgentPlace

from pursuit.core.mission import Workspace as Settings
from pursuit.proposers.agent.workspace import AgentWorkspace, WorkspaceFailed


def removes(tree: Path) -> None:
    (tree / "tests" / "check.py").unlink()


def becomes_a_link(tree: Path) -> None:
    shutil.rmtree(tree / "tests")
    (tree / "elsewhere").mkdir()
    (tree / "elsewhere" / "check.py").write_text("cheat", encoding="utf-8")
    (tree / "tests").symlink_to("elsewhere")


def becomes_a_file(tree: Path) -> None:
    shutil.rmtree(tree / "tests")
    (tree / "tests").write_text("cheat", encoding="utf-8")


def adds_in_any_folder(tree: Path) -> None:
    (tree / "deep").mkdir()
    (tree / "deep" / "conftest.py").write_text("cheat", encoding="utf-8")


def moves(tree: Path) -> None:
    (tree / "tests").rename(tree / "kept")


def loses_its_git_directory(tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    (tree / "tests" / "check.py").write_text("cheat", encoding="utf-8")


@pytest.mark.parametrize(
    "trick", [removes, becomes_a_link, becomes_a_file, adds_in_any_folder, moves, loses_its_git_directory]
)
async def test_no_trick_makes_a_protected_file_count(tmp_path: Path, trick: Callable[[Path], None]) -> None:
    place = AgentPlace(tmp_path, [[]])
    settings = Settings(path=str(place.repository), protect=["tests/**", "conftest.py"])
    workspace = AgentWorkspace(settings, "mission-x", tmp_path / "ws")
    await workspace.prepare()
    before = await workspace.before(0)
    trick(workspace.tree)
    after = await workspace.snapshot("after")
    changes = await workspace.changes(before, after)
    assert changes.protected and changes.files
    checked = await workspace.open_checks()
    assert (checked / "tests" / "check.py").read_text(encoding="utf-8") == CHECK
    assert not (checked / "tests").is_symlink() and not (checked / "deep" / "conftest.py").exists()
    await workspace.close_checks()
    await workspace.rollback(before)
    assert (workspace.tree / "tests" / "check.py").read_text(encoding="utf-8") == CHECK
    assert not (workspace.tree / "deep").exists()
    assert place.git("status", "--porcelain") == ""


@pytest.mark.parametrize("pattern", ["ignored/", "ignored", "deeper/\nignored/tool"])
async def test_linked_files_are_there_and_in_no_snapshot(tmp_path: Path, pattern: str) -> None:
    place = AgentPlace(tmp_path, [[]])
    (place.repository / ".gitignore").write_text(f"{pattern}\n", encoding="utf-8")
    (place.repository / "ignored").mkdir()
    (place.repository / "ignored" / "tool").write_text("tool", encoding="utf-8")
    workspace = AgentWorkspace(Settings(path=str(place.repository), link=["ignored"]), "mission-x", tmp_path / "ws")
    await workspace.prepare()
    before = await workspace.before(0)
    assert (workspace.tree / "ignored" / "tool").read_text(encoding="utf-8") == "tool"
    assert (await workspace.open_checks() / "ignored" / "tool").exists()
    await workspace.close_checks()
    assert before.tree == workspace.start.tree
    assert list(workspace.notes.values()) == ["uncommitted"]  # the file with the pattern
    await workspace.drop()
    assert (place.repository / "ignored" / "tool").exists()  # the links were removed, not what they lead to


async def test_a_worktree_that_is_gone_is_made_again_from_the_newest_snapshot(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    settings = Settings(path=str(place.repository))
    workspace = AgentWorkspace(settings, "mission-x", tmp_path / "ws")
    await workspace.prepare()
    (workspace.tree / "new.txt").write_text("new", encoding="utf-8")
    await workspace.snapshot("after")
    shutil.rmtree(workspace.tree)
    again = AgentWorkspace(settings, "mission-x", tmp_path / "ws")
    await again.prepare()
    assert (again.tree / "new.txt").read_text(encoding="utf-8") == "new"
    with pytest.raises(WorkspaceFailed, match="not in a git repository"):
        await AgentWorkspace(Settings(path="/"), "mission-y", tmp_path / "other").prepare()


async def test_a_ledger_inside_the_repository_is_in_no_snapshot(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])

    async def run(folder: Path) -> None:
        workspace = AgentWorkspace(Settings(path=str(place.repository)), "mission-x", folder / "mission-x")
        await workspace.prepare()
        assert workspace.notes == {}
        (workspace.tree / "new.txt").write_text("new", encoding="utf-8")
        await workspace.snapshot("after")
        assert (await workspace.total()).count(b"diff --git") == 1
        again = AgentWorkspace(Settings(path=str(place.repository)), "mission-y", folder / "mission-y")
        await again.prepare()
        assert again.notes == {}
        for one in (workspace, again):
            await one.drop()

    await run(place.repository / ".pursuit" / "workspaces")  # ignored
    await run(place.repository / "state" / "workspaces")


@pytest.mark.parametrize("glob", ["tests", "tests/", "./tests/**", "**/check.py", "check.py", "te*/check.py"])
async def test_each_way_to_write_a_protected_file_finds_it(tmp_path: Path, glob: str) -> None:
    place = AgentPlace(tmp_path, [[]])
    workspace = AgentWorkspace(Settings(path=str(place.repository), protect=[glob]), "mission-x", tmp_path / "ws")
    await workspace.prepare()
    before = await workspace.before(0)
    await workspace.changes(before, before)
    (workspace.tree / "lib.py").write_text("one", encoding="utf-8")
    first = await workspace.snapshot("first")
    assert (await workspace.changes(before, first)).protected == []
    (workspace.tree / "tests" / "check.py").write_text("cheat", encoding="utf-8")
    assert (await workspace.changes(first, await workspace.snapshot("second"))).protected == ["tests/check.py"]


async def test_worktrees_of_the_user_and_locks_of_a_killed_git_do_no_harm(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    place.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "mine"))
    (tmp_path / "mine").rename(tmp_path / "on a disk that is not there now")
    workspace = AgentWorkspace(Settings(path=str(place.repository)), "mission-x", tmp_path / "ws")
    await workspace.prepare()
    await workspace.snapshot("first")
    (workspace.folder / "index.lock").touch()
    again = AgentWorkspace(Settings(path=str(place.repository)), "mission-x", tmp_path / "ws")
    again.tag = "agent-mission-x"  # this process drives it
    await again.prepare()
    (again.tree / "lib.py").write_text("new", encoding="utf-8")
    await again.snapshot("second")
    await again.open_checks()
    await again.close_checks()
    await again.drop()
    places = [line for line in place.git("worktree", "list", "--porcelain").splitlines() if line.startswith("worktree")]
    assert places == [f"worktree {place.repository}", f"worktree {tmp_path / 'mine'}"]


async def test_only_the_branch_passes_changed_files_through_the_users_filters(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    place.git("config", "filter.case.clean", "tr a-z A-Z")
    place.git("config", "filter.case.smudge", "tr A-Z a-z")
    place.git("config", "core.autocrlf", "true")
    (place.repository / ".gitattributes").write_text("*.txt filter=case\n", encoding="utf-8")
    (place.repository / "old.txt").write_text("old\n", encoding="utf-8")
    place.git("add", "--all")
    place.git("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--message=Filtered")
    workspace = AgentWorkspace(Settings(path=str(place.repository)), "mission-x", tmp_path / "ws")
    await workspace.prepare()
    assert (workspace.tree / "old.txt").read_bytes() == b"old\n" and workspace.notes == {}
    (workspace.tree / "new.txt").write_bytes(b"new\r\n")
    (workspace.tree / "lib.py").unlink()
    (workspace.tree / "lib.py").mkdir()
    (workspace.tree / "lib.py" / "deep.txt").write_bytes(b"deep")
    await workspace.snapshot("after")
    assert (await workspace.open_checks() / "new.txt").read_bytes() == b"new\r\n"
    await workspace.write_branch("Done")
    await workspace.apply()
    changed = place.git("diff", "--name-status", "--no-renames", "main", "pursuit/mission-x").split()
    assert changed == ["D", "lib.py", "A", "lib.py/deep.txt", "A", "new.txt"]
    assert place.git("cat-file", "blob", "pursuit/mission-x:new.txt") == "NEW"
    assert (place.repository / "new.txt").read_bytes() == b"new\r\n"
