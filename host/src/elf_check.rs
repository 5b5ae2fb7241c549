//! Checks, before a program starts, that a pager can be loaded into it.
//!
//! A pager is preloaded, which needs the dynamic loader of the C library we are built
//! for, in a process that the kernel does not start in secure-execution mode.
//!
//! Rule: nothing here allocates or locks: a preloaded library calls it between vfork and
//! exec.

use crate::unpageable::{MACHINE, Name, Unpageable};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, fgetxattr, fstat, open, stat};
use rustix::io::{Errno, pread};
use rustix::process::{getegid, geteuid, getgid, getuid};
use std::ffi::CStr;

/// Most nested interpreters that the kernel follows.
const DEPTH: usize = 5;

/// Bytes of a script's first line that the kernel reads.
const LINE: usize = 256;

/// Bytes of an ELF header, 32 bits wide.
const HEADER: usize = 52;

/// glibc's loader, as the processor's ABI names it.
const LOADER: &CStr = c"/lib64/ld-linux-x86-64.so.2";

/// Checks that the program at `path`, if this process starts it now, can page itself. For a
/// script its interpreter is checked. A file that cannot be read passes: exec decides whether it
/// can run.
pub fn pageable(path: &CStr) -> Result<(), Unpageable> {
    check(path, geteuid() != getuid() || getegid() != getgid())
}

/// The same for a process that makes its effective user and group its real ones first (POSIX_SPAWN_RESETIDS).
pub fn pageable_with_ids_reset(path: &CStr) -> Result<(), Unpageable> {
    check(path, false)
}

fn check(path: &CStr, is_secure: bool) -> Result<(), Unpageable> {
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
            let head = &head[..n];
            // After the check of the file: one that cannot be executed is for exec to refuse.
            elf(&file, head, at, depth > 0)?;
            return match is_secure {
                true => Err(Unpageable::EffectiveIdentity),
                false => Ok(()),
            };
        }
        // The shell runs a file of an unknown kind, as with execvp.
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
    // Opening must not block, on a pipe for example.
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
    // The loader itself, run by name with a program as its argument, names no loader.
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

/// Fails if the kernel would start the file in secure-execution mode.
fn changes_identity(file: &OwnedFd) -> Result<(), Unpageable> {
    let Ok(stat) = fstat(file) else { return Ok(()) };
    let mode = Mode::from_raw_mode(stat.st_mode);
    let user = mode.contains(Mode::SUID) && stat.st_uid != geteuid().as_raw();
    // Without group execution the bit means mandatory locking.
    let group = mode.contains(Mode::SGID | Mode::XGRP) && stat.st_gid != getegid().as_raw();
    if user || group {
        return Err(Unpageable::Setuid);
    }
    if geteuid().is_root() {
        return Ok(());
    }
    let mut capabilities = [0u8; 64];
    match fgetxattr(file, c"security.capability", &mut capabilities[..]) {
        Ok(_) | Err(Errno::RANGE) => Err(Unpageable::Capabilities),
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
    fn a_script_is_as_pageable_as_its_interpreter_at_any_depth() {
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

    /// In a process of its own, by root: ids are of all threads.
    #[test]
    fn a_process_whose_effective_user_is_another_loads_no_pager() {
        const CHANGED: &str = "SELFPAGE_TEST_CHANGED";
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root may change its effective user");
            return;
        }
        if std::env::var_os(CHANGED).is_none() {
            let name = "elf_check::tests::a_process_whose_effective_user_is_another_loads_no_pager";
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", name]).env(CHANGED, "1");
            assert!(test.status().unwrap().success());
            return;
        }
        assert_eq!(pageable(c"/bin/true"), Ok(()));
        // SAFETY: changes the calling process's ids.
        assert_eq!(unsafe { libc::setegid(65534) }, 0);
        assert_eq!(pageable(c"/bin/true"), Err(Unpageable::EffectiveIdentity));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setegid(0) + libc::seteuid(65534) }, 0);
        assert_eq!(pageable(c"/bin/true"), Err(Unpageable::EffectiveIdentity));
    }

    #[test]
    fn the_loader_is_recognised_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ld.so");
        let loader = std::path::Path::new(LOADER.to_str().unwrap());
        std::os::unix::fs::symlink(loader, &path).unwrap();
        assert_eq!(pageable(LOADER), Ok(()));
        assert_eq!(pageable(&c(&path)), Ok(()));
    }

    #[test]
    fn a_loader_with_a_long_path_is_recognised() {
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
    fn programs_of_other_machines_and_other_identities_are_distinguished() {
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
