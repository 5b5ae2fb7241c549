//! `dlsym` where it finds a function of the C library's: in that library's own handle, which foreign-function interfaces
//! have (Python's ctypes, JNA), and as the next one behind a library (RTLD_NEXT), which those do that bring an allocator or
//! wrappers.
//!
//! They would get the C library's `fork`, `mremap` or `free`, past this library: a child would read zeros where
//! its parent had pages that were paged out, and a block would be freed by another allocator. So a function of the
//! C library's that is also one of this library's is given as this library's.
//!
//! The loader resolves RTLD_NEXT relative to the return address of its caller. So its answer is had by way of an
//! instruction `ret` in the code of the program's caller, which comes back here. RTLD_DEFAULT finds this library first,
//! and goes to the C library's own `dlsym` by a jump.

use crate::dlsym::dl_iterate_phdr;
use crate::library_data::{is_of_c_library, is_own, own_path};
use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
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
        "test rax, rax",
        "jnz 3f",
        // A shadow stack of the processor's takes no other way back.
        "rdsspq rax",
        "test rax, rax",
        "jnz 3f",
        "mov rdi, [rsp + 24]",
        "call {find_return}",
        "test rax, rax",
        "jz 3f",
        "add rsp, 8",
        "pop rdi",
        "mov rsi, rax",
        "pop rax",
        "jmp {next_behind}",
        "3: call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        "2: jmp {in_handle}",
        find_return = sym find_return,
        next_behind = sym next_behind,
        next = sym next_dlsym,
        in_handle = sym in_handle,
    )
}

extern "C" fn in_handle(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the C library's function of that name has this type.
    let lookup: Lookup = unsafe { transmute(next_dlsym()) };
    // SAFETY: the program's own call.
    own_instead_of(unsafe { lookup(handle, name) }, name)
}

/// The function of that name behind the library that has a `ret` at `gate`.
extern "C" fn next_behind(name: *const c_char, gate: usize) -> *mut c_void {
    // SAFETY: the program's own call, in its caller's place.
    let found = unsafe { lookup_from(next_dlsym(), name, gate) };
    own_instead_of(found, name)
}

/// Calls `lookup(RTLD_NEXT, name)` with `gate` as its return address, where a `ret` leads back here.
///
/// # Safety
/// As told; `lookup` is a `dlsym`.
#[unsafe(naked)]
unsafe extern "C" fn lookup_from(
    lookup: *mut c_void,
    name: *const c_char,
    gate: usize,
) -> *mut c_void {
    naked_asm!(
        "mov rax, rdi",
        "mov rdi, -1",
        "lea rcx, [rip + 2f]",
        "push rcx",
        "push rdx",
        "jmp rax",
        "2: ret",
    )
}

/// The instruction `ret`, of one byte.
const RET: u8 = 0xc3;

/// Finds a `ret` in the code of the library that `from` is in, at or behind that; 0 if there is none. What this library
/// looks up is the next behind it, also by the functions below.
extern "C" fn find_return(from: usize) -> usize {
    if is_own(from) || !is_of_c_library(next_dlsym().addr()) {
        return 0;
    }
    let mut found = [from, 0];
    // SAFETY: the callback fits, and the words live through the call.
    unsafe { dl_iterate_phdr(find_in_object, found.as_mut_ptr().cast()) };
    found[1]
}

unsafe extern "C" fn find_in_object(
    info: *mut libc::dl_phdr_info,
    _: usize,
    words: *mut c_void,
) -> c_int {
    // SAFETY: the loader's record, its array of program headers, and the words passed above.
    let (start, headers, [from, found]) = unsafe {
        let info = &*info;
        let count = usize::from(info.dlpi_phnum);
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, count);
        (
            info.dlpi_addr as usize,
            headers,
            &mut *words.cast::<[usize; 2]>(),
        )
    };
    let is_code = libc::PF_R | libc::PF_X;
    let code = headers
        .iter()
        .filter(|it| it.p_type == libc::PT_LOAD && it.p_flags & is_code == is_code)
        .map(|it| start + it.p_vaddr as usize..start + (it.p_vaddr + it.p_filesz) as usize)
        .find(|code| code.contains(from));
    let Some(code) = code else { return 0 };
    // SAFETY: code of an object that is loaded, which may be read.
    let code = unsafe { std::slice::from_raw_parts(*from as *const u8, code.end - *from) };
    *found = code
        .iter()
        .position(|byte| *byte == RET)
        .map_or(0, |at| *from + at);
    1
}

/// This library's function of that name, where the one that was `found` is the C library's, and the one that this
/// library itself goes on to.
fn own_instead_of(found: *mut c_void, name: *const c_char) -> *mut c_void {
    if !is_of_c_library(found.addr()) {
        return found;
    }
    let Some(own) = own_handle() else {
        return found;
    };
    // SAFETY: the C library's function of that name has this type.
    let lookup: Lookup = unsafe { transmute(next_dlsym()) };
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
