//! `dlopen`, without RTLD_DEEPBIND.
//!
//! With that flag a plug-in resolves symbols in the C library before any preloaded library: it would free memory of this
//! allocator by another one, and unmap paged memory unnoticed (PHP loads its extensions with the flag). Without it a
//! plug-in resolves symbols as the program does.
//!
//! The loader searches the run path of its caller, which it identifies by the return address. So these functions change the
//! flags and jump to the C library's own.

use crate::dlsym;
use std::arch::naked_asm;
use std::ffi::c_void;

/// The C library's own `dlopen`.
extern "C" fn next_dlopen() -> *mut c_void {
    dlsym::next_function!(NEXT = "dlopen");
    NEXT.find()
}

/// The C library's own `dlmopen`.
extern "C" fn next_dlmopen() -> *mut c_void {
    dlsym::next_function!(NEXT = "dlmopen");
    NEXT.find()
}

/// `dlopen(name, flags)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
extern "C" fn dlopen() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, {others}",
        "jmp rax",
        next = sym next_dlopen,
        others = const !libc::RTLD_DEEPBIND,
    )
}

/// `dlmopen(namespace, name, flags)`. A namespace other than the program's has a C library of its own.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
extern "C" fn dlmopen() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {next}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rdi, rdi",
        "jne 2f",
        "and edx, {others}",
        "2: jmp rax",
        next = sym next_dlmopen,
        others = const !libc::RTLD_DEEPBIND,
    )
}
