//! The environment of a program that is executed: it includes the variables by which the program
//! loads this library and joins the tree.
//!
//! It is built on the stack, or, where that may be too small, in a mapping.

use super::scratch::with_scratch;
use crate::limits::{self, LimitsVariable};
use crate::{address_space, raw_syscall};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null;
use std::sync::OnceLock;
use wired::PAGE;

/// A C array of strings, ended by null.
pub type CStringArray = *const *const c_char;

/// The variables that every environment must have.
struct PreloadEnv {
    /// The library's own path, as LD_PRELOAD had it.
    library: CString,
    /// `LD_PRELOAD=` and that path.
    preload: CString,
    /// `SELFPAGE_...=...`, each, but for the one that changes: [`LimitsVariable`].
    variables: Vec<CString>,
}

static PRELOAD_ENV: OnceLock<PreloadEnv> = OnceLock::new();

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const PREFIX: &[u8] = b"SELFPAGE_";
const NAME: &[u8] = b"libselfpage_preload.so";

/// Copies our variables from the environment. In the constructor.
///
/// # Safety
/// `environment` is an array of C strings ended by null.
pub unsafe fn save_environment(environment: CStringArray) {
    // SAFETY: the caller's.
    let entries = || unsafe { strings(environment) };
    let variables: Vec<CString> = entries()
        .filter(|e| e.to_bytes().starts_with(PREFIX) && !limits::is_variable(e))
        .map(CStr::to_owned)
        .collect();
    let library = entries()
        .filter_map(|e| e.to_bytes().strip_prefix(PRELOAD))
        .flat_map(paths)
        .find(|path| path.ends_with(NAME));
    let Some(library) = library.and_then(|path| CString::new(path).ok()) else {
        return;
    };
    let Ok(preload) = CString::new([PRELOAD, library.as_bytes()].concat()) else {
        return;
    };
    let _ = PRELOAD_ENV.set(PreloadEnv {
        library,
        preload,
        variables,
    });
}

/// This library's path, where the loader could not read it there: after `chroot`, in a container, or as another user.
pub fn unreadable_library() -> Option<&'static CStr> {
    let library = PRELOAD_ENV.get()?.library.as_c_str();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(library, flags, rustix::fs::Mode::empty());
    let is_unreadable = matches!(
        opened.err()?,
        // Others say nothing about the file: the process may have no free descriptor.
        Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::PERM | Errno::LOOP
    );
    is_unreadable.then_some(library)
}

/// The libraries of LD_PRELOAD.
fn paths(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|b| *b == b':' || *b == b' ')
}

/// # Safety
/// As for [`save_environment`]; null is an empty array, as for the kernel.
pub unsafe fn strings<'a>(array: CStringArray) -> impl Iterator<Item = &'a CStr> {
    let mut at = array;
    std::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: inside the array, up to its null.
        let entry = unsafe { *at };
        at = at.wrapping_add(1);
        // SAFETY: a C string of the array.
        (!entry.is_null()).then(|| unsafe { CStr::from_ptr(entry) })
    })
}

/// The longest string of an environment that the kernel takes (MAX_ARG_STRLEN).
const LONGEST: usize = 32 * PAGE;

/// Returns false if the path, the array, or a string of it is not there to its end, or is longer than the kernel
/// takes: the call is the kernel's then, with its own error.
pub fn are_readable(path: *const c_char, environment: CStringArray) -> bool {
    let mut pages = ReadablePages(None);
    let mut at = environment.addr();
    while at != 0 {
        // A slot need not be aligned.
        if !pages.has(at) || !pages.has(at.wrapping_add(size_of::<usize>() - 1)) {
            return false;
        }
        // SAFETY: readable.
        let string = unsafe { (at as *const usize).read_unaligned() };
        if string == 0 {
            break;
        }
        if !pages.has_string(string, LONGEST) {
            return false;
        }
        at = at.wrapping_add(size_of::<usize>());
    }
    pages.has_string(path.addr(), libc::PATH_MAX as usize)
}

/// Returns true if a path is readable to its end, and no longer than the kernel takes.
pub fn is_readable_path(path: *const c_char) -> bool {
    ReadablePages(None).has_string(path.addr(), libc::PATH_MAX as usize)
}

/// Pages that a program's strings lie in; the last that was found readable.
struct ReadablePages(Option<usize>);

impl ReadablePages {
    fn has(&mut self, addr: usize) -> bool {
        let page = addr / PAGE;
        if self.0 != Some(page) && !raw_syscall::is_readable(addr & !7, 8) {
            return false;
        }
        self.0 = Some(page);
        true
    }

    /// Returns true if a string of at most `limit` bytes, with its end, is readable.
    fn has_string(&mut self, start: usize, limit: usize) -> bool {
        let end = start.saturating_add(limit);
        let mut at = start;
        while at < end {
            if !self.has(at) {
                return false;
            }
            let next = (at / PAGE + 1).saturating_mul(PAGE).min(end);
            // SAFETY: within a page that is readable.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, next - at) };
            if bytes.contains(&0) {
                return true;
            }
            at = next;
        }
        false
    }
}

/// A variable's name with its `=`.
fn name_of(entry: &CStr) -> &[u8] {
    let entry = entry.to_bytes();
    let end = entry.iter().position(|b| *b == b'=');
    end.map_or(entry, |at| &entry[..=at])
}

/// Calls `go` with an environment that includes our variables.
///
/// # Safety
/// `environment` is an array of C strings ended by null, or null.
pub unsafe fn with_preload_env<R>(
    environment: CStringArray,
    go: impl FnOnce(CStringArray) -> R,
) -> R {
    let Some(ours) = PRELOAD_ENV.get().filter(|_| address_space::is_active()) else {
        return go(environment);
    };
    // SAFETY: the caller's.
    let entries = || unsafe { strings(environment) };
    let limits = LimitsVariable::new();
    let limits = limits.as_ref().map(LimitsVariable::entry);
    // SAFETY: the caller's.
    if unsafe { ours.are_in(environment, limits) } {
        return go(environment);
    }
    let list = preload_list(entries());
    let preloads = list.is_some_and(|list| ours.is_listed(list));
    let theirs = list.filter(|list| !list.is_empty() && !preloads);
    let pointers = (entries().count() + ours.variables(limits).count() + 2) * size_of::<usize>();
    let bytes = pointers + ours.preload.as_bytes().len() + 2 + theirs.map_or(0, <[u8]>::len);
    with_scratch(bytes, |memory| {
        let Some(memory) = memory else {
            return go(environment);
        };
        // SAFETY: room for all pointers and then the text, as computed.
        unsafe { ours.write(memory, pointers, theirs, limits, entries()) };
        go(memory.cast::<*const c_char>().cast_const())
    })
}

/// Calls `go` with an environment that includes the limits alone, for a program without this library: one that it
/// executes may have it.
///
/// # Safety
/// As for [`with_preload_env`].
pub unsafe fn with_limits<R>(environment: CStringArray, go: impl FnOnce(CStringArray) -> R) -> R {
    let Some(limits) = LimitsVariable::new().filter(|_| address_space::is_active()) else {
        return go(environment);
    };
    // SAFETY: the caller's.
    let others = || unsafe { strings(environment) }.filter(|entry| !limits::is_variable(entry));
    with_scratch((others().count() + 2) * size_of::<usize>(), |memory| {
        let Some(memory) = memory else {
            return go(environment);
        };
        let array = memory.cast::<*const c_char>();
        let all = std::iter::once(limits.entry()).chain(others());
        for (n, entry) in all.map(CStr::as_ptr).chain([null()]).enumerate() {
            // SAFETY: room for all of them, as computed.
            unsafe { array.add(n).write(entry) };
        }
        go(array.cast_const())
    })
}

/// Puts our variables into the environment of the process where they are missing.
pub fn restore_environment() {
    let Some(ours) = PRELOAD_ENV.get().filter(|_| address_space::is_active()) else {
        return;
    };
    let limits = LimitsVariable::new();
    let limits = limits.as_ref().map(LimitsVariable::entry);
    // SAFETY: the program's environment.
    unsafe {
        let environment = super::current_environ();
        if ours.are_in(environment, limits) {
            return;
        }
        let theirs = preload_list(strings(environment)).filter(|list| !list.is_empty());
        let list = match theirs {
            Some(list) if ours.is_listed(list) => list.to_vec(),
            Some(list) => [ours.library.as_bytes(), b":", list].concat(),
            None => ours.library.as_bytes().to_vec(),
        };
        if let Ok(list) = CString::new(list) {
            libc::setenv(c"LD_PRELOAD".as_ptr(), list.as_ptr(), 1);
        }
        for variable in ours.variables(limits) {
            let text = variable.to_bytes();
            let end = name_of(variable).len() - 1;
            if let Ok(name) = CString::new(&text[..end]) {
                libc::setenv(name.as_ptr(), variable.as_ptr().add(end + 1), 1);
            }
        }
    }
}

/// The text of LD_PRELOAD: of several the loader takes the last.
fn preload_list<'a>(entries: impl Iterator<Item = &'a CStr>) -> Option<&'a [u8]> {
    let texts = entries.filter_map(|entry| entry.to_bytes().strip_prefix(PRELOAD));
    texts.last()
}

impl PreloadEnv {
    fn is_listed(&self, list: &[u8]) -> bool {
        paths(list).any(|path| path == self.library.as_bytes())
    }

    /// All variables but LD_PRELOAD, with that of the process's `limits`.
    fn variables<'a>(&'a self, limits: Option<&'a CStr>) -> impl Iterator<Item = &'a CStr> {
        self.variables.iter().map(CString::as_c_str).chain(limits)
    }

    /// Returns true if an environment has all of our variables.
    ///
    /// # Safety
    /// As for [`strings`].
    unsafe fn are_in(&self, environment: CStringArray, limits: Option<&CStr>) -> bool {
        // SAFETY: the caller's.
        let entries = || unsafe { strings(environment) };
        let lists = entries().filter(|entry| entry.to_bytes().starts_with(PRELOAD));
        // Of several the loader takes the last, and a shell the first.
        lists.count() == 1
            && preload_list(entries()).is_some_and(|list| self.is_listed(list))
            && self
                .variables(limits)
                .all(|ours| entries().any(|entry| entry == ours))
    }

    /// Writes an environment of `entries` with ours in their place: the array, of `pointers` bytes,
    /// and then the text of LD_PRELOAD, which loads the libraries of `theirs`, too.
    ///
    /// # Safety
    /// `memory` has room for both.
    unsafe fn write<'a>(
        &self,
        memory: *mut u8,
        pointers: usize,
        theirs: Option<&[u8]>,
        limits: Option<&CStr>,
        entries: impl Iterator<Item = &'a CStr>,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let preload = memory.add(pointers);
            let mut at = preload;
            let mut put = |bytes: &[u8]| {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
                at = at.add(bytes.len());
            };
            put(self.preload.as_bytes());
            if let Some(theirs) = theirs {
                put(b":");
                put(theirs);
            }
            put(b"\0");
            let mut entry = memory.cast::<*const c_char>();
            let mut add = |string: *const c_char| {
                *entry = string;
                entry = entry.add(1);
            };
            add(preload.cast());
            self.variables(limits).for_each(|ours| add(ours.as_ptr()));
            let replaced = |entry: &CStr| {
                let name = name_of(entry);
                let mut ours = self.variables(limits);
                name == PRELOAD || ours.any(|ours| name_of(ours) == name)
            };
            entries
                .filter(|entry| !replaced(entry))
                .for_each(|entry| add(entry.as_ptr()));
            add(null());
        }
    }
}
