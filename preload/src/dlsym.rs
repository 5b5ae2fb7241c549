//! The functions we stand in front of, as the next library defines them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of the next `name` (ended by a null byte), looked up once. Null where no
/// other library defines it: then no program can have called it by name either.
pub fn find(slot: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let known = slot.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    debug_assert!(CStr::from_bytes_with_nul(name.as_bytes()).is_ok());
    // SAFETY: a C string; the loader's lookup changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
    slot.store(found, Ordering::Release);
    found
}

/// Defines a function that calls the next one of the same name.
macro_rules! next {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        $vis unsafe fn $name($($arg: $ty),*) -> $ret {
            static SLOT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
            let found = $crate::dlsym::find(&SLOT, concat!(stringify!($name), "\0"));
            // SAFETY: the C library's function of that name has this type.
            let real: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller's.
            unsafe { real($($arg),*) }
        }
    };
}
pub(crate) use next;

/// What the loader calls for each loaded object.
pub type EachObject =
    unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> std::ffi::c_int;

next! {
    /// The C library's own `dl_iterate_phdr`: a sanitizer's serves once its runtime has started.
    pub fn dl_iterate_phdr(each: EachObject, data: *mut c_void) -> std::ffi::c_int
}
