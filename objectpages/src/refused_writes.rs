//! Writes that the store refuses, in the log: a line for the first, and one when it takes writes again.

use objectstore::ObjectError;

/// Segments that were refused since one was written.
#[derive(Default)]
pub struct RefusedWrites(u64);

impl RefusedWrites {
    /// A segment of so many pages was refused.
    pub fn on_refused(&mut self, pages: usize, why: &ObjectError) {
        if self.0 == 0 {
            let noun = if pages == 1 { "page is" } else { "pages are" };
            tracing::error!("{pages} {noun} not written: {why}");
        }
        self.0 += 1;
    }

    /// A segment was written.
    pub fn on_written(&mut self) {
        let refused = std::mem::take(&mut self.0);
        if refused > 1 {
            tracing::warn!("the store takes pages again, after {refused} refused writes");
        }
    }
}
