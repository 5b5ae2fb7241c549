"""The stressors of stress-ng that touch memory or processes, each with its own verification."""

import re

import packages
from compare import SKIPPED, Unit

FRAMES = "16M"
SECONDS = 5
# Whole classes of stressors, by its own names.
CLASSES = ["vm", "memory", "pipe"]
# What a program does besides to its processes, signals, descriptors and address space.
BESIDE = """
access affinity aio aiol branch chmod clone close context cpu daemon dup dynlib enosys env epoll eventfd
exec exit-group fault fiemap file-ioctl fork fpunch futex get getdent getrandom goto icache inode-flags
inotify io-uring jpeg kcmp kill landlock lease link loadavg locka mknod mq msg mutex nanosleep nice opcode
open personality pidfd pkey poll prctl procfs pthread ptrace readahead regs rlimit robust rseq schedpolicy
seccomp secretmem seek sem sem-sysv session set sigabrt sigaltstack sigbus sigchld sigfd sigfpe sigio signal
signest sigpending sigpipe sigq sigrt sigsegv sigsuspend sigtrap sigxcpu sigxfsz sock sockfd sockpair spawn
switch sync-file syscall sysfs sysinfo timer timerfd trap unshare usersyscall utime vdso vfork vforkmany vma
wait waitcpu workload x86syscall yield zombie
""".split()
# Change the machine, or take all of its memory or its disk.
WITHOUT = {"pipeherd", "revio", "swap", "watchdog"}
# Some times the frames, where the default is a part of the machine's memory.
SIZES = {
    "malloc": ["--malloc-bytes", "48M"],
    "memfd": ["--memfd-bytes", "32M"],
    "memrate": ["--memrate-bytes", "48M"],
    "mmap": ["--mmap-bytes", "48M"],
    "mremap": ["--mremap-bytes", "16M"],
    "msync": ["--msync-bytes", "16M"],
    "shm": ["--shm-bytes", "8M"],
    "shm-sysv": ["--shm-sysv-bytes", "8M"],
    "userfaultfd": ["--userfaultfd-bytes", "16M"],
    "vm": ["--vm-bytes", "48M"],
    "vm-rw": ["--vm-rw-bytes", "16M"],
}


def units(folder):
    packages.install("stress-ng")
    known = set(packages.output(["stress-ng", "--stressors"]).split())
    wanted = set(BESIDE)
    for name in CLASSES:
        listed = packages.output(["stress-ng", "--class", f"{name}?"])
        wanted.update(listed.split(":", 1)[1].split())
    return [unit(name) for name in sorted(wanted & known - WITHOUT)]


def unit(name):
    command = ["stress-ng", f"--{name}", "1", *SIZES.get(name, [])]
    command += ["--timeout", f"{SECONDS}s", "--verify", "--oom-avoid", "--temp-path", "{folder}"]
    return Unit(name, command, lambda run: {name: outcome(run)}, timeout=60 + SECONDS)


def outcome(run):
    """A stressor that cannot run here is skipped: the exit status or the log shows it."""
    if run.status in (3, 4) or re.search(r"skipped: [1-9]|No stress workers invoked", run.log):
        return SKIPPED
    return run.outcome()
