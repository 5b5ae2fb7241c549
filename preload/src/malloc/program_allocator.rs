//! The allocator that a program brings: jemalloc, tcmalloc, a sanitizer's.
//!
//! Such a library is linked or preloaded behind this one, and stands in front of the C library's allocator. It also has
//! functions that this library has not (C++'s `operator new`, `mallocx`, `mallctl`), whose blocks the program passes to
//! `free`. So all blocks are that allocator's, over memory that is paged as the program's other mappings are.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

/// Its functions. What it does not define is the C library's, as without this library.
pub struct ProgramAllocator {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    pub memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub aligned_alloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub malloc_usable_size: unsafe extern "C" fn(*const c_void) -> usize,
    pub malloc_trim: unsafe extern "C" fn(usize) -> c_int,
    pub mallopt: unsafe extern "C" fn(c_int, c_int) -> c_int,
    pub mallinfo2: unsafe extern "C" fn() -> libc::mallinfo2,
    pub mallinfo: unsafe extern "C" fn() -> libc::mallinfo,
    pub malloc_stats: unsafe extern "C" fn(),
}

impl ProgramAllocator {
    /// The allocator of a library other than the C library, if one is loaded. The executable's own comes before this
    /// library, and the program calls it without passing here.
    ///
    /// Looks up all functions at once: a lookup may itself call `free`.
    pub fn find() -> Option<Self> {
        if object_of(next(c"malloc")?)? == object_of(next(c"gnu_get_libc_version")?)? {
            return None;
        }
        // SAFETY: the functions of these names have these types.
        unsafe {
            Some(Self {
                malloc: transmute(next(c"malloc")?),
                calloc: transmute(next(c"calloc")?),
                free: transmute(next(c"free")?),
                realloc: transmute(next(c"realloc")?),
                posix_memalign: transmute(next(c"posix_memalign")?),
                memalign: transmute(next(c"memalign")?),
                aligned_alloc: transmute(next(c"aligned_alloc")?),
                malloc_usable_size: transmute(next(c"malloc_usable_size")?),
                malloc_trim: transmute(next(c"malloc_trim")?),
                mallopt: transmute(next(c"mallopt")?),
                mallinfo2: transmute(next(c"mallinfo2")?),
                mallinfo: transmute(next(c"mallinfo")?),
                malloc_stats: transmute(next(c"malloc_stats")?),
            })
        }
    }
}

/// The next function of that name.
fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a C string; the loader's lookup changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The address of the library that has a function.
fn object_of(function: *mut c_void) -> Option<usize> {
    let mut object = libc::Dl_info {
        dli_fname: null_mut(),
        dli_fbase: null_mut(),
        dli_sname: null_mut(),
        dli_saddr: null_mut(),
    };
    // SAFETY: room for what is found.
    let is_known = unsafe { libc::dladdr(function, &mut object) } != 0;
    is_known.then_some(object.dli_fbase as usize)
}

/// The options of AddressSanitizer's runtime where neither the program nor its environment sets them. The runtime ends a
/// program in which another library comes first, since it might miss calls of `malloc`: it gets them from here.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
