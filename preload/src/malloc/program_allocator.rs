//! The allocator that a program brings: jemalloc, tcmalloc, a sanitizer's.
//!
//! Such a library is linked or preloaded behind this one, in front of the C library. It exports functions that this
//! library lacks (`operator new`, `mallocx`, `mallctl`), and the program passes their blocks to `free`. So every block
//! comes from that allocator, whose memory is paged as the program's other mappings are.
//!
//! A library that only counts or checks blocks (memusage, heaptrack) takes them from the C library, whose heap cannot be
//! paged. It is left out.

use crate::early_alloc;
use crate::library_data::is_of_c_library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

/// Bytes of a block that shows whether an allocator takes its memory from the C library: more than the C library
/// allocates meanwhile for other reasons.
const PROBE: usize = 64 << 10;

/// Defines the allocator's functions, by their names in C.
macro_rules! functions {
    ($($name:ident: $type:ty,)*) => {
        /// Its functions. What it does not define is the C library's, as without this library.
        pub struct ProgramAllocator {
            $(pub $name: $type,)*
        }

        impl ProgramAllocator {
            /// Looks up all functions at once: a lookup may itself call `free`.
            fn look_up() -> Option<Self> {
                Some(Self {
                    $($name: {
                        let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
                        let found = next(name.ok()?)?;
                        // SAFETY: the C function of that name has this type.
                        unsafe { transmute::<*mut c_void, $type>(found) }
                    },)*
                })
            }
        }
    };
}
functions! {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    aligned_alloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    malloc_usable_size: unsafe extern "C" fn(*const c_void) -> usize,
    malloc_trim: unsafe extern "C" fn(usize) -> c_int,
    mallopt: unsafe extern "C" fn(c_int, c_int) -> c_int,
    mallinfo2: unsafe extern "C" fn() -> libc::mallinfo2,
    mallinfo: unsafe extern "C" fn() -> libc::mallinfo,
    malloc_stats: unsafe extern "C" fn(),
}

impl ProgramAllocator {
    /// The allocator of a library other than the C library, if one is loaded. The executable's own comes before this
    /// library, and the program calls it without passing here. In the constructor.
    pub fn find() -> Option<Self> {
        let is_programs = !is_of_c_library(next(c"malloc")?.addr());
        is_programs.then(Self::look_up)?
    }

    /// Returns false if its blocks are the C library's. An allocator that has a `mallinfo2` is none that counts blocks.
    /// None if its `malloc` calls another of the functions by name, as if the program did, and so has a block of the early
    /// pool, which it would not take back.
    pub fn has_memory_of_its_own(&self) -> Option<bool> {
        if !is_of_c_library((self.mallinfo2 as *const c_void).addr()) {
            return Some(true);
        }
        let c_library_in_use = || {
            // SAFETY: may be called at any time.
            let info = unsafe { (self.mallinfo2)() };
            info.uordblks + info.hblkhd
        };
        let before = c_library_in_use();
        // SAFETY: the allocator takes back its own block.
        let block = unsafe { (self.malloc)(PROBE) };
        let taken = c_library_in_use().saturating_sub(before);
        if early_alloc::owns(block.cast()) {
            return None;
        }
        // SAFETY: as above.
        unsafe { (self.free)(block) };
        Some(taken < PROBE)
    }
}

/// The next function of that name.
fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a C string; the loader's lookup changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The options of AddressSanitizer's runtime where neither the program nor its environment sets them. The runtime ends a
/// program in which another library comes first, since it might miss calls of `malloc`: it gets them from here.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
