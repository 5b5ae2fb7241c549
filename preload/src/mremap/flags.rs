//! The flags of `mremap`.

use std::ffi::c_int;

/// The flags of a call.
#[derive(Clone, Copy)]
pub struct Flags {
    pub may_move: bool,
    pub fixed: bool,
    pub keep: bool,
}

impl Flags {
    /// None where the kernel would refuse them.
    pub fn parse(flags: c_int) -> Option<Self> {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let parsed = Self {
            may_move: flags & libc::MREMAP_MAYMOVE != 0,
            fixed: flags & libc::MREMAP_FIXED != 0,
            keep: flags & libc::MREMAP_DONTUNMAP != 0,
        };
        let valid = flags & !known == 0 && (parsed.may_move || !parsed.fixed && !parsed.keep);
        valid.then_some(parsed)
    }
}
