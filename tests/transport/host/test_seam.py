"""The real host: files, locks, sockets, child processes."""

import errno
import fcntl
import gc
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import trio

from shoal.transport.errors import AddressInUse, AlreadyLocked, FileTooLarge, HostError
from shoal.transport.host import realfiles
from shoal.transport.host.allocator import blank
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import FolderEntry

HOST = RealHost()
FILES = HOST.files


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Context that simulates a disk that is full after `size` bytes of any file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_write_and_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"", b"one", memoryview(bytes(1_000_000))):
        FILES.write(path, data)
        assert FILES.read(path, limit=1_000_000) == bytes(data)
        assert FILES.mode(path) == 0o600
        assert FILES.size(path) == len(data)
    FILES.write(path, b"public", mode=0o644)
    assert FILES.mode(path) & 0o600 == 0o600
    assert FILES.list(tmp_path) == [FolderEntry("file", False, 6)]


def test_append(tmp_path: Path) -> None:
    path = tmp_path / "log"
    FILES.append(path, b"one")
    FILES.append(path, memoryview(b" two"))
    assert path.read_bytes() == b"one two" and FILES.mode(path) == 0o600
    with largest_file(9), pytest.raises(OSError):
        FILES.append(path, b" three")
    assert path.read_bytes().startswith(b"one two")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    FILES.write(path, b"old")
    with largest_file(5000), pytest.raises(OSError):
        FILES.write(path, bytes(100_000))
    assert path.read_bytes() == b"old"
    with largest_file(5000), pytest.raises(OSError):
        FILES.write(tmp_path / "new", bytes(100_000))
    assert FILES.list(tmp_path) == [FolderEntry("file", False, 3)]


WRITER = """
import sys
from pathlib import Path
from shoal.transport.host.realfiles import RealFiles
while True:
    for byte in b"ab":
        RealFiles().write(Path(sys.argv[1]), bytes([byte]) * 300_000)
        print(flush=True)
"""


def test_killed_at_any_instant_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for delay in (0.0, 0.003, 0.007, 0.011):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        with writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        assert path.read_bytes() in (b"a" * 300_000, b"b" * 300_000)


def test_read_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert FILES.read(path, limit=100) == bytes(100)
    with pytest.raises(FileTooLarge, match="more than 99 bytes"):
        FILES.read(path, limit=99)
    with pytest.raises(FileNotFoundError):
        FILES.read(tmp_path / "absent", limit=1)


def test_read_range(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    assert FILES.read_range(path, 10, 20) == bytes(range(10, 30))
    assert FILES.read_range(path, 90, 20) == bytes(range(90, 100))
    assert FILES.read_range(path, 200, 20) == b""
    assert FILES.read_range(path, 0, 0) == b""


def test_a_pipe_is_refused_as_a_file(tmp_path: Path) -> None:
    """Opening a pipe for reading would block its thread forever."""
    pipe = tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        FILES.read(pipe, limit=100)
    with pytest.raises(OSError, match="not a regular file"):
        FILES.read_range(pipe, 0, 100)
    with pytest.raises(OSError, match="not a regular file"):
        FILES.read(Path("/dev/zero"), limit=1000)


def test_folders(tmp_path: Path) -> None:
    assert FILES.list(tmp_path / "absent") == []
    assert FILES.size(tmp_path / "absent") is None
    assert FILES.size(tmp_path / "absent" / "file") is None
    folder = tmp_path / "a" / "b"
    FILES.make_folder(folder)
    FILES.make_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "z").write_bytes(b"12")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "link").symlink_to("z")
    FILES.make_folder(folder / "c")
    assert FILES.list(folder) == [
        FolderEntry("c", True, 0),
        FolderEntry("link", False, 2),
        FolderEntry("z", False, 2),
    ]
    FILES.remove(folder / "z")
    FILES.remove(folder / "z")
    assert FILES.free_space(folder) > 0


def test_a_second_holder_of_a_lock_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FILES.lock(path)
    with pytest.raises(AlreadyLocked, match="locked by another process"):
        FILES.lock(path)
    lock.release()
    lock.release()
    FILES.lock(path).release()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path;"
        "from shoal.transport.host.realfiles import RealFiles;"
        "lock = RealFiles().lock(Path(sys.argv[1])); print(flush=True); time.sleep(60)"
    )
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(AlreadyLocked):
            FILES.lock(path)
        holder.kill()
    FILES.lock(path).release()


@pytest.mark.trio
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_listen_and_connect(address: str) -> None:
    if address not in [each.address for each in HOST.interfaces()]:
        pytest.skip(f"this machine has no {address}")
    listener = await HOST.listen(address, 0)
    port = listener.socket.getsockname()[1]
    async with listener:
        ours = await HOST.connect(address, port)
        theirs = await listener.accept()
        async with ours, theirs:
            await ours.send_all(b"hello")
            assert await theirs.receive_some(10) == b"hello"
            with pytest.raises(AddressInUse, match=f"port {port} on {address} is in use"):
                await HOST.listen(address, port)
    (await HOST.listen(address, port)).socket.close()  # free again, though just used


@pytest.mark.trio
async def test_one_of_two_concurrent_listeners_is_refused() -> None:
    spare = await HOST.listen("127.0.0.1", 0)
    port = spare.socket.getsockname()[1]
    await spare.aclose()
    for _ in range(20):
        listeners: list[trio.SocketListener] = []
        refusals: list[AddressInUse] = []

        async def listen(
            listeners: list[trio.SocketListener], refusals: list[AddressInUse]
        ) -> None:
            try:
                listeners.append(await HOST.listen("127.0.0.1", port))
            except AddressInUse as error:
                refusals.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, listeners, refusals)
            nursery.start_soon(listen, listeners, refusals)
        assert (len(listeners), len(refusals)) == (1, 1)
        await listeners[0].aclose()


@pytest.mark.trio
async def test_dials_can_leave_from_the_listening_port() -> None:
    async with await HOST.listen("127.0.0.1", 0) as ours, await HOST.listen("127.0.0.1", 0) as far:
        sock = trio.socket.socket()
        with sock:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)
            await sock.bind(ours.socket.getsockname())
            await sock.connect(far.socket.getsockname())
            (await HOST.connect(*ours.socket.getsockname())).socket.close()
            await (await ours.accept()).aclose()


@pytest.mark.trio
async def test_listening_at_a_foreign_address_is_refused() -> None:
    with pytest.raises(HostError, match=r"cannot listen on 192\.0\.2\.1 port 0") as raised:
        await HOST.listen("192.0.2.1", 0)
    assert "0.0.0.0" in str(raised.value.hint)


@pytest.mark.trio
async def test_a_kernel_without_ipv6_refuses_as_a_missing_address_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without(family: int, kind: int) -> None:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(trio.socket, "socket", without)
    with pytest.raises(HostError, match="cannot listen on ::: Address family"):
        await HOST.listen("::", 0)
    with pytest.raises(HostError, match="cannot listen on ::: Address family"):
        await HOST.datagrams("::", 0)


@pytest.mark.trio
async def test_a_dial_without_a_listener_is_refused() -> None:
    async with await HOST.listen("127.0.0.1", 0) as listener:
        port = listener.socket.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await HOST.connect("127.0.0.1", port)


@pytest.mark.trio
async def test_the_local_socket_is_private_and_a_stale_one_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    for _ in range(2):  # the second time, the first one's file is still there
        listener = await HOST.listen_local(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_ISSOCK(path.stat().st_mode)
        async with listener, await trio.open_unix_socket(str(path)) as ours:
            theirs = await listener.accept()
            await ours.send_all(b"x")
            assert await theirs.receive_some(1) == b"x"
            await theirs.aclose()


CHILDREN = {
    "echo": """
import os, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
assert sys.stdin.read() == ""
print("a print must not reach standard output")
sock.sendall(" ".join(sys.argv[2:]).encode() + b" " + os.environ["WORD"].encode())
while sock.recv(100):
    pass
sys.exit(5)
""",
    "stubborn": """
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sock = socket.socket(fileno=int(sys.argv[1]))
sock.sendall(b"up")
while True:
    time.sleep(60)
""",
}


@pytest.fixture
def child_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in CHILDREN.items():
        (tmp_path / f"shoal_test_{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.trio
async def test_a_child_talks_and_ends_with_its_socket(
    child_modules: None, capfd: pytest.CaptureFixture[str]
) -> None:
    child = await HOST.spawn("shoal_test_echo", ["a", "b c"], {"WORD": "w"})
    with trio.fail_after(20):
        assert await child.socket.recv(100) == b"a b c w"
        await child.stop(10)
        assert await child.wait() == 5
    captured = capfd.readouterr()
    assert captured.out == "" and "a print" in captured.err


@pytest.mark.trio
async def test_a_child_imports_nothing_from_the_folder_it_is_started_in(
    child_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a model with code"
    folder.mkdir()
    (folder / "signal.py").write_text("raise SystemExit(9)")
    (folder / "socket.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(folder)
    child = await HOST.spawn("shoal_test_echo", ["a"], {"WORD": "w"})
    with trio.fail_after(20):
        assert await child.socket.recv(100) == b"a w"
        await child.stop(10)


@pytest.mark.trio
async def test_a_child_that_ignores_the_end_is_killed(child_modules: None) -> None:
    child = await HOST.spawn("shoal_test_stubborn", [], {})
    with trio.fail_after(20):
        assert await child.socket.recv(100) == b"up"
        await child.stop(0.05)
        assert await child.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.trio
async def test_a_cancelled_stop_kills_too(child_modules: None) -> None:
    child = await HOST.spawn("shoal_test_stubborn", [], {})
    with trio.fail_after(20):
        assert await child.socket.recv(100) == b"up"
        with trio.move_on_after(0.05):
            await child.stop(1000)
        assert await child.wait() == -signal.SIGKILL


def test_a_child_sees_its_parent_die(child_modules: None) -> None:
    code = (
        "import trio; from shoal.transport.host.real import RealHost\n"
        "async def main():\n"
        "    child = await RealHost().spawn('shoal_test_echo', [], {'WORD': 'w'})\n"
        "    await child.socket.recv(100); print(child.pid, flush=True)\n"
        "    await trio.sleep_forever()\n"
        "trio.run(main)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    deadline = time.monotonic() + 20
    with suppress(psutil.NoSuchProcess):
        while child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.trio
async def test_resolve() -> None:
    assert set(await HOST.resolve("localhost")) & {"127.0.0.1", "::1"}
    assert await HOST.resolve("192.0.2.1") == ["192.0.2.1"]
    with pytest.raises(HostError, match="cannot resolve"):
        await HOST.resolve("no such name")


@pytest.mark.trio
async def test_offload_runs_elsewhere_and_raises_here() -> None:
    def divide(number: int) -> float:
        return 1 / number

    assert await HOST.offload(divide, 4) == 0.25
    with pytest.raises(ZeroDivisionError):
        await HOST.offload(divide, 0)


@pytest.mark.trio
async def test_the_machine() -> None:
    machine = HOST.machine()
    assert machine.cores >= 1
    assert 0 < machine.memory_available <= machine.memory_total
    assert machine.system and machine.architecture
    loopback = [each for each in HOST.interfaces() if each.address == "127.0.0.1"]
    assert [each.prefix for each in loopback] == [8]
    assert len(HOST.entropy(32)) == 32 and HOST.entropy(32) != HOST.entropy(32)
    assert HOST.now() <= trio.current_time()
    assert abs(HOST.wall() - time.time()) < 5


def test_staged_files_settle_together(tmp_path: Path) -> None:
    files = FILES
    moves = [(tmp_path / f".{n}.new", tmp_path / str(n)) for n in range(20)]
    for staged, _ in moves[:-1]:
        files.stage(staged, b"data")
    with pytest.raises(FileExistsError):
        files.stage(moves[0][0], b"again")
    files.stage(tmp_path / ".empty.new", b"")
    assert files.size(tmp_path / ".empty.new") == 0
    files.settle(moves)  # one of them no longer exists
    files.settle(moves)
    names = {entry.name for entry in files.list(tmp_path)}
    assert names == {str(n) for n in range(19)} | {".empty.new"}
    assert files.read(tmp_path / "3", limit=10) == b"data"


def test_settled_files_are_synced_before_their_move_and_their_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves, synced = (
        [(tmp_path / f".{n}.new", tmp_path / n) for n in "012"],
        list[tuple[Path, int]](),
    )
    for staged, _ in moves:
        FILES.stage(staged, b"data")

    def sync(paths: Iterable[Path]) -> None:
        synced.extend((path, sum(moved.exists() for _, moved in moves)) for path in paths)

    monkeypatch.setattr(realfiles, "_sync", sync)
    FILES.settle(moves)
    assert {*synced[:3]} == {(staged, 0) for staged, _ in moves}
    assert synced[3:] == [(tmp_path, 3)]


def test_the_folders_of_settled_files_are_synced_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says that other files are there is moved after them, into another folder."""
    folders, synced = [tmp_path / "chunks", tmp_path / "markers"], list[Path]()
    moves = [(folder / ".new", folder / "name") for folder in folders]
    for staged, _ in moves:
        FILES.make_folder(staged.parent)
        FILES.stage(staged, b"")

    def sync(paths: Iterable[Path]) -> None:
        for path in paths:
            if path == folders[0]:
                time.sleep(0.05)  # the disk is slow with the first one
            synced.append(path)

    monkeypatch.setattr(realfiles, "_sync", sync)
    FILES.settle(moves)
    assert synced[2:] == folders


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 2**20, 2**20 + 5])
@pytest.mark.parametrize("aligned", [True, False])
def test_bytes_are_staged_from_any_memory(tmp_path: Path, size: int, aligned: bool) -> None:
    memory = blank(size + 1)[:size] if aligned else memoryview(bytearray(size + 1))[1:]
    memory[:] = os.urandom(size)
    FILES.stage(tmp_path / "staged", memory.toreadonly())
    assert (tmp_path / "staged").read_bytes() == memory


@pytest.mark.parametrize("taken", [None, 0, 4096, 3 * 4096])
def test_bytes_that_cannot_bypass_the_cache_are_written_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int | None
) -> None:
    """`None`: the file system does not support it."""
    data = os.urandom(5 * 4096)
    direct = []

    def write(descriptor: int, given: memoryview) -> int:
        direct.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)  # this memory is not aligned to blocks
        if taken is None:
            raise OSError(errno.EINVAL, "invalid argument")
        return os.pwrite(descriptor, given[:taken], 0) and os.lseek(descriptor, taken, 0)

    monkeypatch.setattr("shoal.transport.host.realfiles.os.write", write)
    FILES.stage(tmp_path / "staged", data)
    assert direct == [True]
    assert (tmp_path / "staged").read_bytes() == data


def test_a_disk_that_fills_past_the_cache_leaves_nothing(tmp_path: Path) -> None:
    memory = blank(2**20)
    memory[:] = bytes(2**20)
    with largest_file(4096), pytest.raises(OSError, match="too large"):
        FILES.stage(tmp_path / "staged", memory)
    assert FILES.list(tmp_path) == []


def test_pieces_that_fail_leave_the_old_file(tmp_path: Path) -> None:
    files, path = FILES, tmp_path / "file"

    def pieces(fail: bool) -> Iterator[bytes]:
        yield b"one "
        if fail:
            raise KeyError("no more")
        yield b"two"

    files.write_pieces(path, pieces(False))
    assert files.read(path, limit=10) == b"one two"
    with pytest.raises(KeyError):
        files.write_pieces(path, pieces(True))
    assert files.read(path, limit=10) == b"one two"
    assert [entry.name for entry in files.list(tmp_path)] == ["file"]


def test_identity_changes_when_a_file_is_rewritten_in_place(tmp_path: Path) -> None:
    files, path = FILES, tmp_path / "file"
    assert files.identity(path) is None
    files.write(path, b"1")
    before = files.identity(path)
    assert before is not None and before == files.identity(path)
    os.utime(path, ns=(0, 0))
    assert files.identity(path) != before


def test_kept_memory_is_excluded_from_garbage_collection() -> None:
    loaded = [object, [object]]
    HOST.keep_memory()
    try:
        assert gc.get_freeze_count() > 0
        assert not any(each is loaded for each in gc.get_objects())
    finally:
        gc.unfreeze()
    assert any(each is loaded for each in gc.get_objects())
