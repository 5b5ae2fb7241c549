"""Packages and sources of packages, by the machine's own package manager."""

import pathlib
import shutil
import subprocess

from compare import Skip

SOURCES = pathlib.Path("/etc/apt/sources.list.d/debian.sources")


def output(command, **options):
    """The output of a command; a command that fails skips the suite."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except FileNotFoundError:
        raise Skip(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise Skip(f"`{' '.join(map(str, command))}` fails: {done.stderr.strip()[-300:]}")
    return done.stdout


def is_installed(package):
    query = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True)
    return query.stdout.endswith(" installed")


def install(*wanted):
    """Installs those of these packages that are missing."""
    missing = [package for package in wanted if not is_installed(package)]
    if not missing:
        return
    environment = {"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    if subprocess.run(install, env=environment, capture_output=True).returncode != 0:
        output(["apt-get", "update", "-q"])
        output(install, env=environment)


def source(package, folder):
    """Unpacks the upstream source of the installed `package` below `folder`.

    That is of the installed version, or of another where that one cannot be fetched. The package
    lists of sources are kept in `folder`: the machine's own stay as they are.
    """
    fields = "${source:Package} ${source:Version}"
    name, installed = output(["dpkg-query", "-W", "-f", fields, package]).split()
    unpacked = folder / name
    if unpacked.exists():
        return unpacked
    apt = with_sources(folder)
    known = output(["apt-cache", *apt, "showsrc", "--only-source", name])
    versions = [line.split()[1] for line in known.splitlines() if line.startswith("Version: ")]
    versions.sort(key=lambda version: version != installed)
    for version in versions:
        try:
            archive = download(apt, f"{name}={version}", folder / "download")
            break
        except Skip as reason:
            refused = reason
    else:
        raise refused if versions else Skip(f"no source of {name} is known")
    part = folder / "part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    output(["tar", "-xf", archive, "-C", part, "--strip-components=1"])
    part.rename(unpacked)
    return unpacked


def with_sources(folder):
    """Options that give the package manager source lists, in folders of its own."""
    if not SOURCES.exists():
        raise Skip(f"there is no {SOURCES}, by which sources are fetched")
    (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
    text = SOURCES.read_text().replace("Types: deb\n", "Types: deb-src\n")
    (folder / "debian.sources").write_text(text)
    values = {
        "Dir::Etc::sourcelist": folder / "debian.sources",
        "Dir::Etc::sourceparts": folder / "none",
        "Dir::State::lists": folder / "lists",
        "APT::Sandbox::User": "root",
    }
    options = [f"-o{key}={value}" for key, value in values.items()]
    output(["apt-get", *options, "-q", "update"])
    return options


def download(options, version, folder):
    """Fetches the archive of a source, `NAME=VERSION`, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    output(["apt-get", *options, "-q", "source", "--download-only", "--tar-only", version], cwd=folder)
    (archive,) = folder.glob("*.orig.tar.*")
    return archive
