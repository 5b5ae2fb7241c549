//! `dlsym` in the C library's own handle: what foreign-function interfaces do (Python's ctypes, JNA).
//!
//! They would get the C library's `fork` or `mremap`, past this library: a child would read zeros where
//! its parent had pages that were paged out. So a function of the C library's that is also one of this
//! library's is given as this library's.
//!
//! The loader resolves RTLD_NEXT, and RTLD_DEFAULT, relative to the return address of its caller. So
//! these go to the C library's own `dlsym` by a jump.

use crate::library_data::{is_of_c_library, is_own, own_path};
use std::arch::naked_asm;
use std::ffi::{c_char, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The C library's own `dlsym`. Not looked up by itself.
extern "C" fn next_dlsym() -> *mut c_void {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let known = NEXT.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // Of the first version for this machine, which every C library has.
    let version = c"GLIBC_2.2.5".as_ptr();
    // SAFETY: C strings; the lookup changes nothing.
    let found = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version) };
    NEXT.store(found, Ordering::Release);
    found
}

/// `dlsym(handle, name)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
extern "C" fn dlsym() {
    naked_asm!(
        // RTLD_DEFAULT is 0, RTLD_NEXT is -1.
        "lea rax, [rdi + 1]",
        "cmp rax, 1",
        "ja 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        "2: jmp {in_handle}",
        next = sym next_dlsym,
        in_handle = sym in_handle,
    )
}

extern "C" fn in_handle(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the C library's function of that name has this type.
    let lookup: Lookup = unsafe { transmute(next_dlsym()) };
    // SAFETY: the program's own call.
    let found = unsafe { lookup(handle, name) };
    if !is_of_c_library(found.addr()) {
        return found;
    }
    let Some(own) = own_handle() else {
        return found;
    };
    // SAFETY: a name that was found. Neither lookup can fail, as this library depends on the C library,
    // so that both leave `dlerror` without an error.
    let (next, ours) = unsafe { (lookup(libc::RTLD_NEXT, name), lookup(own, name)) };
    match next == found && is_own(ours.addr()) {
        true => ours,
        false => found,
    }
}

/// This library's own handle.
fn own_handle() -> Option<*mut c_void> {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let known = HANDLE.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    // SAFETY: the loader's own string for this library, which is loaded.
    let found = unsafe { libc::dlopen(own_path()?.as_ptr(), flags) };
    HANDLE.store(found, Ordering::Release);
    (!found.is_null()).then_some(found)
}
