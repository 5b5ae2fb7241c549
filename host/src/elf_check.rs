//! Checks, before a program starts, that it can be given a pager at all.
//!
//! A pager is preloaded, which needs the dynamic loader of the C library we are built
//! for, in a process that the kernel does not start in secure-execution mode.
//!
//! Rule: nothing here allocates or locks: a preloaded library calls it between vfork and
//! exec.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, fgetxattr, fstat, open, stat};
use rustix::io::{Errno, pread};
use rustix::process::{getegid, geteuid};
use std::ffi::CStr;

/// Interpreters of interpreters the kernel follows.
const DEPTH: usize = 5;

/// Bytes of a script's first line the kernel reads.
const LINE: usize = 256;

/// Bytes of a name that a message shows.
const NAME: usize = 64;

/// Bytes of an ELF header, 32 bits wide.
const HEADER: usize = 52;

/// The machine this is built for, as ELF numbers it, and by name.
const MACHINE: (u16, &str) = (62, "x86-64");

/// glibc's loader, as the processor's ABI names it.
const LOADER: &CStr = c"/lib64/ld-linux-x86-64.so.2";

/// Why a program cannot page itself: `{}` also says what to do, `{:#}` is for one that runs
/// unpaged all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpageable {
    /// No dynamic loader runs in it.
    Static {
        /// Of a script, what runs it.
        interpreter: Option<Name>,
    },
    /// It changes its identity when it starts.
    Setuid,
    /// It gains capabilities when it starts.
    Capabilities,
    /// It is of another processor, or 32 bits wide.
    Architecture {
        /// As ELF numbers it.
        machine: u16,
        /// Width of an address.
        bits: u8,
    },
    /// It is linked with a C library that is not glibc.
    Loader {
        /// What it asks for.
        loader: Name,
    },
}

impl std::error::Error for Unpageable {}

impl std::fmt::Display for Unpageable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (no_pager, mend) = match self {
            Self::Static { interpreter } => {
                if let Some(interpreter) = interpreter {
                    write!(f, "its interpreter is {interpreter}: ")?;
                }
                f.write_str("it is statically linked, so no pager can be loaded into it")?;
                ("", "use a dynamically linked build of it")
            }
            Self::Setuid => {
                f.write_str("it is set-user-ID or set-group-ID")?;
                (TRUSTED, "run it as the user it becomes")
            }
            Self::Capabilities => {
                f.write_str("it has file capabilities")?;
                let mend = "remove them (setcap -r) from a copy and run it as root";
                (TRUSTED, mend)
            }
            Self::Architecture { machine, bits } => {
                write!(
                    f,
                    "it is built for another machine (ELF machine {machine}, {bits} bits), the pager for {} with 64 \
                     bits",
                    MACHINE.1
                )?;
                ("", "use a build for this machine")
            }
            Self::Loader { loader } => {
                let ours = "not glibc's, and the pager is built for glibc";
                write!(f, "its dynamic loader is {loader}, {ours}")?;
                ("", "use a build for glibc")
            }
        };
        f.write_str(no_pager)?;
        match f.alternate() {
            // `direct_io_filter::install`: a user who may not filter gives privileges up for that.
            true if !no_pager.is_empty() && !geteuid().is_root() => f.write_str(
                "; it also runs without the privilege that it would gain, since the tree has no_new_privs",
            ),
            true => Ok(()),
            false => write!(
                f,
                ": {mend}, or use --allow-unpaged to let it run outside the contract"
            ),
        }
    }
}

const TRUSTED: &str = ", and the kernel lets no pager be loaded into such a program";

/// A file name of bounded length, held in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME]);

impl Name {
    fn new(bytes: &[u8]) -> Self {
        let mut it = Self([0; NAME]);
        let n = bytes.len().min(NAME);
        it.0[..n].copy_from_slice(&bytes[..n]);
        it
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.0.split(|b| *b == 0).next().unwrap_or(&[]);
        f.write_str(std::str::from_utf8(used).unwrap_or("of an unreadable name"))
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Whether the program at `path`, started now by this process, can page itself. Of a
/// script its interpreter counts. A file that cannot be read passes: exec decides whether it
/// can run.
pub fn pageable(path: &CStr) -> Result<(), Unpageable> {
    let mut line = [0u8; LINE + 1];
    let mut at = path;
    for depth in 0..DEPTH {
        let Some(file) = read(at) else { return Ok(()) };
        let mut head = [0u8; LINE];
        let n = pread(&file, &mut head[..], 0).unwrap_or(0);
        if head[..n].starts_with(b"\x7fELF") {
            if n < HEADER {
                // The kernel refuses it.
                return Ok(());
            }
            return elf(&file, &head[..n], at, depth > 0);
        }
        // A file of no known kind is given to the shell, as execvp does.
        let interpreter = head[..n]
            .strip_prefix(b"#!")
            .map_or(&b"/bin/sh"[..], interpreter);
        line.fill(0);
        line[..interpreter.len()].copy_from_slice(interpreter);
        let Ok(next) = CStr::from_bytes_until_nul(&line) else {
            return Ok(());
        };
        at = next;
    }
    Ok(())
}

/// The interpreter's path in a script's first line, without the `#!`.
fn interpreter(line: &[u8]) -> &[u8] {
    let line = line.split(|b| *b == b'\n').next().unwrap_or(&[]);
    line.split(|b| *b == b' ' || *b == b'\t')
        .find(|word| !word.is_empty())
        .unwrap_or(&[])
}

fn read(path: &CStr) -> Option<OwnedFd> {
    // Not to wait where the path is a pipe, say.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    open(path, flags, Mode::empty()).ok()
}

fn elf(file: &OwnedFd, head: &[u8], path: &CStr, is_interpreter: bool) -> Result<(), Unpageable> {
    let half = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let wide = head.get(4) == Some(&2);
    let machine = half(18).unwrap_or(0);
    if !wide || machine != MACHINE.0 {
        return Err(Unpageable::Architecture {
            machine,
            bits: if wide { 64 } else { 32 },
        });
    }
    changes_identity(file)?;
    let table = head
        .get(32..40)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_ne_bytes);
    let (size, count) = (
        u64::from(half(54).unwrap_or(0)),
        u64::from(half(56).unwrap_or(0)),
    );
    for i in 0..count {
        let mut entry = [0u8; 56];
        if pread(file, &mut entry[..], table + i * size).ok() != Some(entry.len()) {
            break;
        }
        const PT_INTERP: [u8; 4] = 3u32.to_ne_bytes();
        if entry[..4] == PT_INTERP {
            let mut name = [0u8; LINE];
            let at = u64::from_ne_bytes(entry[8..16].try_into().unwrap_or_default());
            let n = pread(file, &mut name[..], at).unwrap_or(0);
            let loader = name[..n].split(|b| *b == 0).next().unwrap_or(&[]);
            return if is_glibc(loader) {
                Ok(())
            } else {
                Err(Unpageable::Loader {
                    loader: Name::new(loader),
                })
            };
        }
    }
    // The loader itself, run by name with a program as its argument, has none.
    if is_glibc(path.to_bytes()) || is_loader(file) {
        Ok(())
    } else {
        Err(Unpageable::Static {
            interpreter: is_interpreter.then(|| Name::new(path.to_bytes())),
        })
    }
}

fn is_glibc(path: &[u8]) -> bool {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(&[]);
    name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.")
}

/// Returns true for the loader under another name: glibc installs one as `ld.so`.
fn is_loader(file: &OwnedFd) -> bool {
    matches!(
        (fstat(file), stat(LOADER)),
        (Ok(file), Ok(loader)) if (file.st_dev, file.st_ino) == (loader.st_dev, loader.st_ino)
    )
}

/// Returns true if the kernel would start it in secure-execution mode.
fn changes_identity(file: &OwnedFd) -> Result<(), Unpageable> {
    let Ok(stat) = fstat(file) else { return Ok(()) };
    let mode = Mode::from_raw_mode(stat.st_mode);
    let user = mode.contains(Mode::SUID) && stat.st_uid != geteuid().as_raw();
    // Without group execution the bit means mandatory locking.
    let group = mode.contains(Mode::SGID | Mode::XGRP) && stat.st_gid != getegid().as_raw();
    if user || group {
        return Err(Unpageable::Setuid);
    }
    let mut capabilities = [0u8; 64];
    match (
        geteuid().is_root(),
        fgetxattr(file, c"security.capability", &mut capabilities[..]),
    ) {
        (false, Ok(_) | Err(Errno::RANGE)) => Err(Unpageable::Capabilities),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn c(path: &std::path::Path) -> std::ffi::CString {
        std::ffi::CString::new(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn an_ordinary_program_and_a_script_for_it_are_pageable() {
        assert_eq!(pageable(c"/bin/sh"), Ok(()));
        let dir = tempfile::tempdir().unwrap();
        for (text, name) in [
            ("#!/bin/sh\n", "a"),
            ("#! /usr/bin/env  sh\n", "b"),
            ("echo no first line\n", "c"),
            ("\x7fELF", "d"),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            assert_eq!(pageable(&c(&path)), Ok(()), "{text}");
        }
        assert_eq!(pageable(c"/nonexistent"), Ok(()), "exec says that better");
    }

    #[test]
    fn a_script_is_what_its_interpreter_is_however_deep() {
        let dir = tempfile::tempdir().unwrap();
        let mut elf = vec![0u8; 128];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
        let bin = dir.path().join("static");
        std::fs::write(&bin, &elf).unwrap();
        let interpreter = None;
        assert_eq!(pageable(&c(&bin)), Err(Unpageable::Static { interpreter }));
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, format!("#!{}\n", bin.display())).unwrap();
        std::fs::write(&two, format!("#!\t{} -x\n", one.display())).unwrap();
        let why = pageable(&c(&two)).unwrap_err().to_string();
        let begin = format!("its interpreter is {}: it is statically", bin.display());
        assert!(why.starts_with(&begin), "{why}");
        std::fs::write(&one, format!("#!{}\n", one.display())).unwrap();
        assert_eq!(pageable(&c(&one)), Ok(()), "a loop is for exec to refuse");
    }

    #[test]
    fn the_loader_is_known_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ld.so");
        let loader = std::path::Path::new(LOADER.to_str().unwrap());
        std::os::unix::fs::symlink(loader, &path).unwrap();
        assert_eq!(pageable(LOADER), Ok(()));
        assert_eq!(pageable(&c(&path)), Ok(()));
    }

    #[test]
    fn the_loader_of_a_package_store_has_a_long_path() {
        const INTERPRETER_AT: usize = 0x200;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let folders = format!("/store/{}-glibc-2.40/lib", "h".repeat(100));
        let pageable_with = |loader: &str| {
            let mut elf = vec![0u8; INTERPRETER_AT];
            elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
            elf[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
            elf[32..40].copy_from_slice(&64u64.to_le_bytes());
            elf[54..58].copy_from_slice(&[56, 0, 1, 0]);
            elf[64..68].copy_from_slice(&3u32.to_le_bytes());
            elf[72..80].copy_from_slice(&(INTERPRETER_AT as u64).to_le_bytes());
            elf.extend_from_slice(format!("{folders}/{loader}\0").as_bytes());
            std::fs::write(&path, &elf).unwrap();
            pageable(&c(&path))
        };
        assert_eq!(pageable_with("ld-linux-x86-64.so.2"), Ok(()));
        let musl = pageable_with("ld-musl-x86_64.so.1");
        assert!(matches!(musl, Err(Unpageable::Loader { .. })), "{musl:?}");
    }

    #[test]
    fn other_machines_and_other_identities_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let mut elf = std::fs::read("/bin/true").unwrap();
        elf[18] = 0xb7 ^ 1;
        std::fs::write(&path, &elf).unwrap();
        assert!(matches!(
            pageable(&c(&path)),
            Err(Unpageable::Architecture { bits: 64, .. })
        ));
        elf[4] = 1;
        std::fs::write(&path, &elf).unwrap();
        assert!(matches!(
            pageable(&c(&path)),
            Err(Unpageable::Architecture { bits: 32, .. })
        ));
        std::fs::copy("/bin/true", &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(pageable(&c(&path)), Ok(()), "to ourselves is no change");
        let other = if geteuid().is_root() { 65534 } else { return };
        std::os::unix::fs::chown(&path, Some(other), None).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(pageable(&c(&path)), Err(Unpageable::Setuid));
    }
}
