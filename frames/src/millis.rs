//! Times that processes share in one word.

/// A time in milliseconds that wraps; times are compared if they are less than 24 days apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Millis(pub u32);

impl Millis {
    /// The time by the clock that all processes share.
    pub fn now() -> Self {
        Self::of(wired::clock::now())
    }

    /// A time of [`wired::clock`].
    pub fn of(nanos: u64) -> Self {
        Self((nanos / 1_000_000) as u32)
    }

    /// Milliseconds from `earlier` to this time; 0 if that is later.
    pub fn since(self, earlier: Self) -> u32 {
        match self.0.wrapping_sub(earlier.0) {
            ahead if ahead > u32::MAX / 2 => 0,
            passed => passed,
        }
    }
}
