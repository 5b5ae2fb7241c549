"""A Debian cloud kernel: its package, unpacked, and the modules that the guest needs."""

import lzma
import pathlib
import re
import subprocess

# What a guest's root needs: its disk, and the devices that tests of swapping use.
MODULES = ["virtio_pci", "virtio_blk", "zram", "veth", "dummy"]


class Kernel:
    """One unpacked kernel package."""

    def __init__(self, release, folder):
        self.release = release
        self.image = next(folder.glob("boot/vmlinuz-*"))
        self.modules = next((folder / "lib/modules").iterdir())

    def module_files(self):
        """Pairs of a file name and contents, each after those that it depends on."""
        depends = {}
        for line in (self.modules / "modules.dep").read_text().splitlines():
            path, needed = line.split(":")
            depends[path] = needed.split()
        by_name = {pathlib.Path(path).name.split(".")[0]: path for path in depends}
        # Those built into the kernel have no file.
        wanted = [by_name[name] for name in MODULES if name in by_name]
        files = {}
        for path in wanted:
            for each in [*reversed(depends[path]), path]:
                contents = (self.modules / each).read_bytes()
                if each.endswith(".xz"):
                    contents = lzma.decompress(contents)
                files.setdefault(pathlib.Path(each).name.removesuffix(".xz"), contents)
        return list(files.items())


def find(series, cache):
    """The newest kernel of a series, 6.1 or 6.12, that Debian has; downloaded once."""
    named = subprocess.run(
        ["apt-cache", "search", "--names-only", rf"^linux-image-{re.escape(series)}\..*-cloud-amd64$"],
        check=True, capture_output=True, text=True,
    ).stdout
    releases = [line.split()[0].removeprefix("linux-image-") for line in named.splitlines()]
    if not releases:
        raise FileNotFoundError(f"apt-cache knows no linux-image-{series}.*-cloud-amd64: apt-get update, or another --series")
    release = max(releases, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])
    folder = cache / release
    if not (folder / "lib").exists():
        cache.mkdir(parents=True, exist_ok=True)
        package = f"linux-image-{release}"
        subprocess.run(["apt-get", "download", "-q", package], cwd=cache, check=True, capture_output=True)
        archive = next(cache.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
        archive.unlink()
        subprocess.run(["depmod", "-b", folder, release], check=True)
    return Kernel(release, folder)
