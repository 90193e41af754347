"""System call filter of a text child, which denies new programs, sockets, files and processes.

Uses seccomp on Linux for x86-64 and AArch64, if the kernel supports it. System calls that computing
does not need fail with EPERM. New threads are allowed, new processes are not. The filter is a
classic BPF program (`linux/filter.h`, `linux/seccomp.h`). The system call numbers are from
`asm/unistd_64.h` and `asm-generic/unistd.h`.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final

_NO_NEW_PRIVS: Final = 38  # PR_SET_NO_NEW_PRIVS
_ARCHES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_FILTER: Final = 1  # SECCOMP_SET_MODE_FILTER
_ALL_THREADS: Final = 1  # SECCOMP_FILTER_FLAG_TSYNC
_X32: Final = 0x40000000  # first number of the x32 system calls

# System call numbers on x86-64 and on AArch64. None: the call does not exist there.
DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    "open": (2, None), "creat": (85, None), "openat": (257, 56), "openat2": (437, 437),
    "open_by_handle_at": (304, 265), "memfd_create": (319, 279),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "process_madvise": (440, 440), "kcmp": (312, 272),
    "truncate": (76, 45), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "link": (86, None), "linkat": (265, 37), "symlink": (88, None),
    "symlinkat": (266, 36), "mknod": (133, None), "mknodat": (259, 33), "chmod": (90, None),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None),
    "fchownat": (260, 54), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "setns": (308, 268), "unshare": (272, 97), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    # Memory and queues that would outlive the process, outside its memory limit.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}  # fmt: skip
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
_THREAD: Final = 0x10000  # CLONE_THREAD

# Byte offsets in `struct seccomp_data`. `_FIRST` is the low half of the first argument.
_NUMBER, _ARCH, _FIRST = 0, 4, 16

# BPF opcodes: load a word; jump if equal, if at least, if any bit is set; return.
_LOAD, _EQUAL, _LEAST, _ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_DENY: Final = 0x00050000 | errno.EPERM
_MISSING: Final = 0x00050000 | errno.ENOSYS


def confine() -> str:
    """Apply the seccomp filter to all threads of this process. Return "" or the reason for a
    failure."""
    if not sys.platform.startswith("linux"):
        return f"no system call filter on {sys.platform}"
    machine = platform.machine()
    if machine not in _ARCHES:
        return f"no system call filter for {machine}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        return f"no_new_privs: {os.strerror(ctypes.get_errno())}"
    code = program(machine, os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, _address(buffer)))
    if libc.syscall(_SECCOMP[machine], _SET_FILTER, _ALL_THREADS, head):
        return f"the kernel refuses the filter: {os.strerror(ctypes.get_errno())}"
    return ""


def _address(buffer: "ctypes.Array[ctypes.c_char]") -> int:
    return ctypes.addressof(buffer)


def program(machine: str, pid: int) -> bytes:
    """Return the BPF program for this machine type, with 8 bytes per instruction.

    The process `pid` may send signals to its own threads.
    """
    column = list(_ARCHES).index(machine)
    lines = [_load(_ARCH), _jump(_EQUAL, _ARCHES[machine], 1, 0), _return(_DENY), _load(_NUMBER)]
    lines += [_jump(_LEAST, _X32, 0, 1), _return(_DENY)]
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            lines += [_jump(_EQUAL, number, 0, 1), _return(_DENY)]
    # A filter cannot read clone3's flags, which are in memory. libc falls back to `clone`.
    lines += [_jump(_EQUAL, _CLONE3[column], 0, 1), _return(_MISSING)]
    for numbers, compare, value in (
        (_CLONE, _ANY, _THREAD),
        (_TGKILL, _EQUAL, pid),
        (_PRLIMIT, _EQUAL, 0),  # 0: the caller's own limits
    ):
        lines += [_jump(_EQUAL, numbers[column], 0, 4), _load(_FIRST),
                  _jump(compare, value, 0, 1), _return(_ALLOW), _return(_DENY)]  # fmt: skip
    return b"".join([*lines, _return(_ALLOW)])


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", _LOAD, 0, 0, offset)


def _jump(compare: int, value: int, then: int, otherwise: int) -> bytes:
    return struct.pack("=HBBI", compare, then, otherwise, value)


def _return(answer: int) -> bytes:
    return struct.pack("=HBBI", _RETURN, 0, 0, answer)
