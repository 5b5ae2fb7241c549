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

use crate::library_data::{is_of_c_library, is_own};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use wired::PAGE;

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// A function of the C library's own: of the first version for this machine, which every C library has, and which a
/// sanitizer's function of the same name is not. That one may not be called before its runtime has started.
struct VersionedFunction {
    found: AtomicPtr<c_void>,
    name: &'static CStr,
}

impl VersionedFunction {
    const fn new(name: &'static CStr) -> Self {
        Self {
            found: AtomicPtr::new(null_mut()),
            name,
        }
    }

    fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let version = c"GLIBC_2.2.5".as_ptr();
        // SAFETY: C strings; the lookup changes nothing.
        let found = unsafe { dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version) };
        self.found.store(found, Ordering::Release);
        found
    }
}

/// The C library's own `dlsym`. Not looked up by itself.
extern "C" fn next_dlsym() -> *mut c_void {
    static NEXT: VersionedFunction = VersionedFunction::new(c"dlsym");
    NEXT.find()
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
        "call {find_ret}",
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
        find_ret = sym find_ret,
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

/// The function of that name behind the library that has a `ret` at `return_site`.
extern "C" fn next_behind(name: *const c_char, return_site: usize) -> *mut c_void {
    // SAFETY: the program's own call, in its caller's place.
    let found = unsafe { lookup_from(next_dlsym(), name, return_site) };
    own_instead_of(found, name)
}

/// Calls `lookup(RTLD_NEXT, name)` with `return_site` as its return address, where a `ret` leads back here.
///
/// # Safety
/// As told; `lookup` is a `dlsym`.
#[unsafe(naked)]
unsafe extern "C" fn lookup_from(
    lookup: *mut c_void,
    name: *const c_char,
    return_site: usize,
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
extern "C" fn find_ret(from: usize) -> usize {
    if is_own(from) || !is_of_c_library(next_dlsym().addr()) {
        return 0;
    }
    let Some(code) = code_of(from) else { return 0 };
    // SAFETY: code of an object that is loaded, which may be read.
    let code = unsafe { std::slice::from_raw_parts(from as *const u8, code.end - from) };
    let at = code.iter().position(|byte| *byte == RET);
    at.map_or(0, |at| from + at)
}

/// The segment of code that `addr` is in. Its object is found without the lock of the loader's list, which another thread
/// may hold, for ever in the child of a fork.
fn code_of(addr: usize) -> Option<Range<usize>> {
    static DLADDR: VersionedFunction = VersionedFunction::new(c"dladdr");
    type Dladdr = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info) -> c_int;
    if DLADDR.find().is_null() {
        return None;
    }
    // SAFETY: the function of that name; the object's headers, which the loader has mapped with it.
    let (start, headers) = unsafe {
        let dladdr: Dladdr = transmute(DLADDR.find());
        let mut object: libc::Dl_info = std::mem::zeroed();
        if dladdr(addr as *const c_void, &raw mut object) == 0 {
            return None;
        }
        let start = object.dli_fbase.addr();
        let elf = &*(start as *const libc::Elf64_Ehdr);
        let table_len = usize::from(elf.e_phnum) * size_of::<libc::Elf64_Phdr>();
        // The loader maps it with the first segment, but for objects of odd making.
        if !elf.e_ident.starts_with(b"\x7fELF") || elf.e_phoff as usize + table_len > PAGE {
            return None;
        }
        let table = (start + elf.e_phoff as usize) as *const libc::Elf64_Phdr;
        let headers = std::slice::from_raw_parts(table, usize::from(elf.e_phnum));
        (start, headers)
    };
    // A program that is not relocated has its addresses in its headers.
    let first = headers.iter().find(|it| it.p_type == libc::PT_LOAD)?;
    let bias = start - (first.p_vaddr as usize & !(PAGE - 1));
    let is_code = libc::PF_R | libc::PF_X;
    headers
        .iter()
        .filter(|it| it.p_type == libc::PT_LOAD && it.p_flags & is_code == is_code)
        .map(|it| bias + it.p_vaddr as usize..bias + (it.p_vaddr + it.p_filesz) as usize)
        .find(|code| code.contains(&addr))
}

/// This library's function of that name, where the one that was `found` is the C library's, and the one that this
/// library itself goes on to.
fn own_instead_of(found: *mut c_void, name: *const c_char) -> *mut c_void {
    if !is_of_c_library(found.addr()) {
        return found;
    }
    // SAFETY: the C library's function of that name has this type.
    let lookup: Lookup = unsafe { transmute(next_dlsym()) };
    // The first of that name, which is this library's but where the executable has its own. Not by this library's handle:
    // to get that from `dlopen` allocates, and a sanitizer looks names up before its own allocator has begun.
    // SAFETY: a name that was found. Neither lookup can fail, so that both leave `dlerror` without an error.
    let [next, ours] = [libc::RTLD_NEXT, libc::RTLD_DEFAULT].map(|it| unsafe { lookup(it, name) });
    match next == found && is_own(ours.addr()) {
        true => ours,
        false => found,
    }
}
