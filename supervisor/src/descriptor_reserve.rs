//! The descriptors that the supervisor keeps free.
//!
//! The supervisor reads /proc for calls that stop at the filter and to end the tree, and an image that replaces another
//! one needs its own descriptors before those of the other are closed. So forks and more shared memory are refused
//! while there is still room for both.

use host::descriptor_limit;

/// Descriptors of one process: its connection, its pidfd, its lifeline and two userfaultfds.
const PROCESS: usize = 5;

/// Descriptors for look-ups, and for received ones that are closed again.
const LOOK_UPS: usize = 6;

/// Descriptors for images that replace others at the same time.
const IMAGES: usize = 8;

/// Returns true if one more process may join, or one more range of shared memory.
pub(crate) fn has_room_for_more() -> bool {
    descriptor_limit::can_open(PROCESS + IMAGES + LOOK_UPS)
}

/// Returns true if an image may join that replaces another one.
pub(crate) fn has_room_for_image() -> bool {
    descriptor_limit::can_open(PROCESS + LOOK_UPS)
}
