//! Functions of the C library that fork by a call of its own: it would report success for a child that is refused, and
//! ends at once.

use super::fork;
use crate::raw_syscall::set_errno;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

/// `daemon`.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn daemon(keeps_directory: c_int, keeps_io: c_int) -> c_int {
    match fork() {
        -1 => return -1,
        0 => {}
        // SAFETY: as the C library ends the parent.
        _ => unsafe { libc::_exit(0) },
    }
    // SAFETY: no memory of the program's is passed.
    unsafe {
        if libc::setsid() == -1 {
            return -1;
        }
        if keeps_directory == 0 {
            let _ = libc::chdir(c"/".as_ptr());
        }
    }
    match keeps_io {
        0 => redirect_standard_io(),
        _ => 0,
    }
}

/// Puts /dev/null in the place of the standard descriptors.
fn redirect_standard_io() -> c_int {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a C string, and room for the answer.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        if null == -1 {
            return -1;
        }
        let is_known = libc::fstat(null, stat.as_mut_ptr()) == 0;
        let stat = stat.assume_init();
        let is_null =
            stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3);
        if !is_known || !is_null {
            libc::close(null);
            if is_known {
                set_errno(libc::ENODEV);
            }
            return -1;
        }
        for standard in 0..=2 {
            libc::dup2(null, standard);
        }
        if null > 2 {
            libc::close(null);
        }
    }
    0
}

/// `forkpty`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn forkpty(
    to: *mut c_int,
    name: *mut c_char,
    attributes: *const libc::termios,
    size: *const libc::winsize,
) -> libc::pid_t {
    let (mut controller, mut terminal) = (-1, -1);
    // SAFETY: the caller's.
    unsafe {
        if libc::openpty(&mut controller, &mut terminal, name, attributes, size) == -1 {
            return -1;
        }
        match fork() {
            -1 => {
                libc::close(controller);
                libc::close(terminal);
                -1
            }
            0 => {
                libc::close(controller);
                if libc::login_tty(terminal) != 0 {
                    libc::_exit(1);
                }
                0
            }
            child => {
                *to = controller;
                libc::close(terminal);
                child
            }
        }
    }
}
