"""Native kernels of processors that this machine may not have: AVX-512 and NEON.

`kernels/suite.cpp` checks kernels as test_native.py does, without Python. Everywhere it runs with
the AVX-512 kernels whose instructions are written as loops (`kernels/scalar512.cpp`). Emulators run
the instructions themselves: QEMU those of ARM, and Bochs, which boots Linux, those of AVX-512. No
emulator here knows those of AVX-512 BF16.
"""

import os
import platform
import pty
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.tasks.engine.kernels import library_path

FOLDER = Path(__file__).parent / "kernels"
KERNELS = Path(__file__).parents[3] / "tasks/engine/kernels"
FLAGS = ("-std=c++17", "-fno-math-errno", "-Wno-psabi", "-Wno-maybe-uninitialized", "-pthread")
ARM = "aarch64-linux-gnu-g++"
LINUX = Path(os.environ.get("SHOAL_TEST_LINUX", "/usr/local/share/shoal-tests/vmlinuz"))
"""A kernel of Linux for Bochs, which `.ci/run` takes from Debian's package."""
BOCHS = ("bochs-bin", "xorriso", "cpio", "strip")
BOOT = Path("/usr/lib/ISOLINUX/isolinux.bin"), Path("/usr/lib/syslinux/modules/bios/ldlinux.c32")
BOCHS_SECONDS = 600
BOCHSRC = """
config_interface: textconfig
display_library: term
cpu: model=corei7_icelake_u, count=1, ips=50000000
memory: guest=512, host=512
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
boot: cdrom
ata0-master: type=cdrom, path={disk}, status=inserted
com1: enabled=1, mode=file, dev={said}
clock: sync=none, time0=local
log: {log}
panic: action=fatal
"""
BOCHS_LACKS = (288, 320, 321, 323, 515, 158, 306, 145, 295, 297, 298, 308, 514, 534, 580)
"""Numbers of processor features (Linux, cpufeatures.h) that Linux must not use in Bochs 2.7: the
base of GS is lost with `fsgsbase` (288), the sizes of `xsavec`, `xsaves` and `pku` (321, 323, 515)
contradict each other, and with `rdrand` or `rdseed` (158, 306) it hangs."""
ISOLINUX = """
DEFAULT suite
PROMPT 0
LABEL suite
KERNEL vmlinuz
INITRD initrd
APPEND console=ttyS0 quiet mitigations=off nokaslr tsc=reliable lpj=200000 idle=halt \\
nofsgsbase nosmap nosmep nopcid noinvpcid nopti lsm=capability random.trust_cpu=off \\
clearcpuid={without} -- {name} 1
""".replace("\\\n", "")


def compiled(
    folder: Path, sources: Sequence[Path], *options: str, by: str = "g++", headers: Path = KERNELS
) -> Path:
    """Compile a program for the suite, and return its path. The sources are compiled at once.

    Kernels that are not linked are none that `entry.cpp` offers.
    """
    running = []
    for number, source in enumerate(sources):
        command = [by, *FLAGS, f"-I{headers}", *options, "-c", str(source), f"-o{number}.o"]
        running.append(subprocess.Popen(command, cwd=folder))
    assert [each.wait() for each in running] == [0] * len(running)
    objects = [f"{number}.o" for number in range(len(sources))]
    link = [by, "-static", "-pthread", "-Wl,--unresolved-symbols=ignore-all", *objects, "-osuite"]
    subprocess.run(link, cwd=folder, check=True)
    return folder / "suite"


def output(*command: str | Path) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def needs(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


# ---- everywhere


@pytest.mark.skipif(library_path() is None, reason="no compiler built the kernels")
def test_the_suite_passes_the_kernels_of_this_machine(tmp_path: Path) -> None:
    needs("g++")
    library = str(library_path())
    suite = tmp_path / "suite"
    command = ["g++", *FLAGS, "-O1", f"-I{KERNELS}", str(FOLDER / "suite.cpp"), library]
    subprocess.run([*command, f"-o{suite}"], check=True)
    for name, threads in (("best", "2"), ("portable", "1")):
        assert f"\npassed {name if name != 'best' else ''}" in output(suite, name, threads)


def in_loops(folder: Path, name: str, headers: Path = KERNELS) -> str:
    """Compile AVX-512 kernels with loops for their instructions, and return what the suite says."""
    needs("g++")
    if platform.machine() != "x86_64":
        pytest.skip("these kernels are for x86-64")
    # `entry.cpp` asks the processor for its sets of instructions.
    has = '-D__builtin_cpu_supports(set)=(BF16_DOTS||strcmp(set,"avx512bf16"))'
    options = ["-O1", "-march=native", f"-DBF16_DOTS={int(name == 'avx512bf16')}", has]
    sources = [FOLDER / "suite.cpp", FOLDER / "scalar512.cpp"]
    sources += [KERNELS / "entry.cpp", KERNELS / "pool.cpp"]
    return output(compiled(folder, sources, *options, headers=headers), name, "1")


@pytest.mark.parametrize("name", ["avx512", "avx512bf16"])
def test_avx512_kernels_in_loops(name: str, tmp_path: Path) -> None:
    said = in_loops(tmp_path, name)
    assert said.endswith(f"\npassed {name}\n"), said


MISTAKES = {
    "the sign of bytes": ("avx512.h", "-128 * sum_of_inputs", "0 * sum_of_inputs", "int8"),
    "one row apart": (
        "products.h",
        "store(y + v * W, sum[v]);\n}\n\ntemplate <int M>",
        "store(y + v * W, sum[v] * splat(1.0000002f));\n}\n\ntemplate <int M>",
        "depends on other rows",
    ),
    "whole panels": (
        "products.h", "+ at, from, width * 4)", "+ at, from, PANEL * 4)", "products of float32",
    ),
    "the window": ("attention.h", "key > at - tile->window", "key >= at - tile->window", "window"),
    "the future": ("attention.h", "&& key <= at &&", "&& key <= at + 1 &&", "attention"),
    "a position": ("steps.h", "position % BLOCK;", "position % BLOCK ^ 1;", "steps in float32"),
}  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_suite_finds_mistakes(mistake: str, tmp_path: Path) -> None:
    file, right, wrong, said = MISTAKES[mistake]
    for header in KERNELS.glob("*.h"):
        shutil.copyfile(header, tmp_path / header.name)
    text = (tmp_path / file).read_text()
    assert text.count(right) == 1
    (tmp_path / file).write_text(text.replace(right, wrong))
    lines = in_loops(tmp_path, "avx512", tmp_path).splitlines()
    assert lines[-1] == "failed avx512"
    assert any(line.startswith("FAIL") and said in line for line in lines)


# ---- in emulators


def suite_of_all(folder: Path, by: str = "g++") -> Path:
    return compiled(folder, [FOLDER / "suite.cpp", *sorted(KERNELS.glob("*.cpp"))], "-O3", by=by)


@pytest.mark.ci
def test_neon_kernels_on_arm(tmp_path: Path) -> None:
    needs(ARM, "qemu-aarch64")
    suite = suite_of_all(tmp_path, ARM)
    for processor, name, best in (("max", "best", "neondot"), ("cortex-a72", "best", "neon")):
        said = output("qemu-aarch64", "-cpu", processor, suite, name, "2")
        assert said.endswith(f"\npassed {best}\n"), said
    said = output("qemu-aarch64", "-cpu", "cortex-a72", suite, "neondot", "1")
    assert "no `neondot` instructions" in said


@pytest.mark.ci
def test_avx512_kernels_in_bochs(tmp_path: Path) -> None:
    needs("g++", *BOCHS)
    if not LINUX.exists() or not all(each.exists() for each in BOOT):
        pytest.skip("the kernel of Linux, isolinux or syslinux-common is not installed")
    suite = suite_of_all(tmp_path)
    said = booted(tmp_path, suite, "best")
    assert "passed avx512" in said.splitlines(), said


def booted(folder: Path, suite: Path, name: str) -> str:
    """Boot Linux with the suite as its first process on an Ice Lake of Bochs, and return what it
    prints."""
    disk, said = bootable(folder, suite, name), folder / "serial"
    settings, commands = folder / "bochsrc", folder / "commands"
    settings.write_text(BOCHSRC.format(disk=disk, said=said, log=folder / "log"))
    commands.write_text("c\n")  # to the debugger of Debian's build: continue
    terminal, inner = pty.openpty()  # the screen
    threading.Thread(target=drained, args=(terminal,), daemon=True).start()
    with subprocess.Popen(
        ["bochs-bin", "-q", "-f", str(settings), "-rc", str(commands)],
        stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "TERM": "xterm"},
    ) as bochs:  # fmt: skip
        os.close(inner)
        try:
            return ended(bochs, said)
        finally:
            bochs.kill()


def bootable(folder: Path, suite: Path, name: str) -> Path:
    """Write a disk that boots Linux from memory, with the suite as its first process."""
    boot, disk = folder / "disk/isolinux", folder / "disk.iso"
    boot.mkdir(parents=True)
    for source, target in ((LINUX, "vmlinuz"), *((each, each.name) for each in BOOT)):
        shutil.copyfile(source, boot / target)
    without = ",".join(map(str, BOCHS_LACKS))
    (boot / "isolinux.cfg").write_text(ISOLINUX.format(without=without, name=name))
    subprocess.run(["strip", "-o", "init", str(suite)], cwd=folder, check=True)
    packed = ["cpio", "--create", "--format=newc", "--quiet"]
    initrd = subprocess.run(packed, cwd=folder, input=b"init\n", capture_output=True, check=True)
    (boot / "initrd").write_bytes(initrd.stdout)
    command = [
        "xorriso",
        "-as",
        "mkisofs",
        "-quiet",
        "-o",
        str(disk),
        "-b",
        "isolinux/isolinux.bin",
    ]
    command += ["-c", "isolinux/boot.cat", "-no-emul-boot", "-boot-load-size", "4"]
    subprocess.run([*command, "-boot-info-table", str(folder / "disk")], check=True)
    return disk


def drained(terminal: int) -> None:
    """Read what is shown, until the program has ended."""
    with os.fdopen(terminal, "rb", buffering=0) as shown, suppress(OSError):
        while shown.read(4096):
            pass


def ended(bochs: subprocess.Popen[bytes], said: Path) -> str:
    """Wait for the suite's last line, and return all of them."""
    end, text = time.monotonic() + BOCHS_SECONDS, ""
    while time.monotonic() < end and bochs.poll() is None:
        text = said.read_text(errors="replace") if said.exists() else ""
        if any(line.startswith(("passed ", "failed ", "this ")) for line in text.splitlines()):
            return text
        time.sleep(0.5)
    raise AssertionError(f"the suite did not end in Bochs:\n{text}")
