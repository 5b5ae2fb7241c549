"""The guest's disk and first root: this machine's programs, this tree's tests, and no more."""

import os
import pathlib
import re
import shutil
import subprocess

# Programs of this machine that tests start; one that is missing here is skipped by its test.
PROGRAMS = """
bash sh cat cp mv rm ln ls mkdir rmdir chmod chown touch head tail sort uniq wc cut tr tee seq sleep true false
env id nproc date dd df du stat sync timeout mktemp readlink realpath dirname basename kill test expr uname
grep sed awk find xargs ps pgrep free mount umount unshare nsenter setpriv prlimit taskset chrt ionice losetup
swapon swapoff mkswap mkfs.ext4 ip tc gdb sqlite3 redis-server redis-cli redis-check-rdb stress-ng python3
nice setsid flock dmesg mknod gcc cc as ld
""".split()
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
FOLDERS = [
    "/usr/lib/python3.11", "/usr/lib/locale/C.utf8", "/usr/lib/x86_64-linux-gnu/gconv",
    "/usr/include", "/usr/lib/gcc/x86_64-linux-gnu/12",
]
# Of these, what no test needs.
LEFT_OUT = ["__pycache__", "test", "config-*", "c++", "node", "boost", "llvm*", "cc1plus", "lto1", "*san*", "libstdc++*"]
# What the C compiler links.
LINKED = ["*crt*.o", "libc.so", "libc_nonshared.a", "libm.so", "libmvec.so", "libpthread.a", "libdl.a", "libm-*.a", "librt.a"]
DEVELOPMENT = pathlib.Path("/usr/lib/x86_64-linux-gnu")
FILES = ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/protocols", "/etc/services"]


def build_disk(path, folder, root, executables, guest):
    """Makes an ext4 image of the programs, and of this tree and its `executables` at their own paths."""
    if folder.exists():
        shutil.rmtree(folder)
    for name in ["proc", "sys", "dev", "tmp", "run", "var/tmp", "root", "etc", "usr/bin", "usr/sbin", "usr/lib"]:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ["bin", "sbin", "lib", "lib64"]:
        (folder / name).symlink_to(f"usr/{name}")
        (folder / "usr" / name).mkdir(exist_ok=True)
    programs = [shutil.which(name, path=SYSTEM) for name in PROGRAMS]
    files = [pathlib.Path(each) for each in programs if each]
    files += [each for kind in LINKED for each in DEVELOPMENT.glob(kind)]
    for name in FOLDERS:
        if os.path.isdir(name):
            target = folder / name.lstrip("/")
            shutil.copytree(name, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
            files += [pathlib.Path("/") / each.relative_to(folder) for each in target.rglob("*") if is_program(each)]
    for each in FILES:
        place(pathlib.Path(each), folder)
    for each in files:
        place(each, folder)
    for each in executables:
        target = place(each, folder)
        subprocess.run(["strip", "-g", target], check=False)
    for each in libraries([*files, *executables]):
        place(each, folder)
    for each in subprocess.run(["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True).stdout.splitlines():
        place(root / each, folder)
    replace_cargo(folder)
    (folder / str(root / "target/tmp").lstrip("/")).mkdir(parents=True, exist_ok=True)
    shutil.copytree(guest, folder / "guest", dirs_exist_ok=True)
    path.unlink(missing_ok=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", folder, path, "6G"], check=True)


def replace_cargo(folder):
    """Tests that have cargo build a library find it built."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    cargo = folder / sysroot.lstrip("/") / "bin/cargo"
    cargo.parent.mkdir(parents=True, exist_ok=True)
    cargo.write_text("#!/bin/sh\n")
    cargo.chmod(0o755)


def is_program(path):
    """Whether the dynamic linker loads a file, and what it needs."""
    return path.is_file() and (path.suffix == ".so" or os.access(path, os.X_OK)) and path.read_bytes()[:4] == b"\x7fELF"


def place(path, folder):
    """Copies a file to its own path below `folder`; a link becomes the file that it names."""
    target = folder / str(path).lstrip("/")
    if path.exists() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return target


def libraries(files):
    """The shared libraries that the dynamic linker loads for any of `files`."""
    found = set()
    for start in range(0, len(files), 50):
        listed = subprocess.run(["ldd", *files[start:start + 50]], check=False, capture_output=True, text=True).stdout
        found.update(re.findall(r"(/\S+) \(0x", listed))
    return [pathlib.Path(each) for each in found]


def build_initramfs(path, folder, kernel, busybox, guest):
    """Makes the first root: busybox, the kernel's modules, and the script that mounts the disk."""
    if folder.exists():
        shutil.rmtree(folder)
    for name in ["bin", "dev", "proc", "modules", "disk"]:
        (folder / name).mkdir(parents=True)
    shutil.copy2(busybox, folder / "bin/busybox")
    for number, (name, contents) in enumerate(kernel.module_files()):
        (folder / "modules" / f"{number:02}-{name}").write_bytes(contents)
    shutil.copy2(guest / "first", folder / "init")
    names = subprocess.run(["find", "."], cwd=folder, check=True, capture_output=True).stdout
    with open(path, "wb") as image:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=folder, input=names, stdout=image, check=True)
