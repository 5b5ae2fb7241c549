//! The functions we stand in front of, as the next library defines them.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function or a datum as the next library defines it. [`next_function`] makes those that every C
/// library has.
pub struct NextFunction {
    found: AtomicPtr<c_void>,
    /// Ended by a null byte.
    name: &'static str,
}

impl NextFunction {
    pub const fn new(name: &'static str) -> Self {
        Self {
            found: AtomicPtr::new(null_mut()),
            name,
        }
    }

    /// Its address, looked up once. Null where no other library defines it: then no program can
    /// have called it by name either.
    pub fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a C string; the loader's lookup changes nothing.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast::<c_char>()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Defines a [`NextFunction`], which [`find_all`] looks up.
macro_rules! next_function {
    ($slot:ident = $name:expr) => {
        // Used as it is: else the optimizer splits it.
        #[used]
        #[unsafe(link_section = "selfpage_next")]
        static $slot: $crate::dlsym::NextFunction =
            $crate::dlsym::NextFunction::new(concat!($name, "\0"));
    };
}
pub(crate) use next_function;

unsafe extern "C" {
    /// Where the linker puts the first of the section, and past the last.
    static __start_selfpage_next: u8;
    static __stop_selfpage_next: u8;

    /// Looks up what local.c needs.
    fn selfpage_find_next();
}

/// Looks all of them up. In the constructor: later the lookup may wait for the loader's lock, whose
/// holder may be in `dlopen`, in a library's constructor that waits for the very thread that looks
/// up; and a signal handler must not look up at all. A name that is missing has the loader allocate a
/// message, which a sanitizer that has not begun yet does not survive: it is looked up when it is called.
pub fn find_all() {
    let mut at = (&raw const __start_selfpage_next).cast::<NextFunction>();
    let end = (&raw const __stop_selfpage_next).cast();
    while at < end {
        // SAFETY: the section has nothing else.
        unsafe {
            (*at).find();
            at = at.add(1);
        }
    }
    // SAFETY: the constructor.
    unsafe { selfpage_find_next() };
}

/// Defines a function that calls the next one of the same name.
macro_rules! next {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        $vis unsafe fn $name($($arg: $ty),*) -> $ret {
            $crate::dlsym::next_function!(NEXT = stringify!($name));
            type Real = unsafe extern "C" fn($($ty),*) -> $ret;
            // SAFETY: the C library's function of that name has this type.
            let real = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Real>(NEXT.find()) };
            // SAFETY: the caller's.
            unsafe { real($($arg),*) }
        }
    };
}
pub(crate) use next;

/// What the loader calls for each loaded object.
pub type EachObject = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

next! {
    /// The C library's own `dl_iterate_phdr`: a sanitizer's serves once its runtime has started.
    pub fn dl_iterate_phdr(each: EachObject, data: *mut c_void) -> c_int
}
