//! Hedged reads: when a late read is sent to a second server, and how many may be.
//!
//! Not in *Adaptive Remote Paging for Mobile Computers*: a hedged request (Dean and Barroso, *The Tail at Scale*,
//! 2013). A server that is slow for once, or silent, costs a page-in no more than [`late_after`] where another copy, or
//! the rest of a stripe, has the page. Rule: the budget bounds what is sent twice by what was answered, so a network on
//! which everything is late carries a twentieth more, not twice as much.

use std::time::Duration;

/// The least time after which a read is late: a server on a busy host waits that long for a processor (a time slice
/// of Linux's scheduler is 3 ms, and some may be ahead).
const LEAST: Duration = Duration::from_millis(10);
/// A read is late after this, however long its server took for others, and where that is not known.
const MOST: Duration = Duration::from_millis(100);
/// Deviations beyond the usual time that are no surprise: TCP's, before it sends again (RFC 6298).
const DEVIATIONS: u32 = 4;

/// Reads answered for each that may be sent twice.
const ANSWERS: u32 = 20;
/// Reads that may be sent twice at once: as many as a client of the schedule has under way, since a server that ends
/// keeps all of them waiting.
const BURST: u32 = 128;

/// How long a server usually takes, and how far it usually is from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseTime {
    /// The smoothed time.
    pub usual: Duration,
    /// The smoothed deviation.
    pub deviation: Duration,
}

/// How long a read waits for a server before it is late.
pub fn late_after(time: Option<ResponseTime>) -> Duration {
    let surprise = |time: ResponseTime| {
        let deviations = time.deviation.saturating_mul(DEVIATIONS);
        time.usual.saturating_add(deviations)
    };
    time.map_or(MOST, surprise).clamp(LEAST, MOST)
}

/// How many reads may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeBudget {
    /// In parts of a request, of which there are [`ANSWERS`].
    credit: u32,
}

impl Default for HedgeBudget {
    fn default() -> Self {
        Self {
            credit: BURST * ANSWERS,
        }
    }
}

impl HedgeBudget {
    /// A read was answered.
    pub fn on_answer(&mut self) {
        self.credit = (self.credit + 1).min(BURST * ANSWERS);
    }

    /// Takes so many requests from the budget. Returns false, and takes none, if it has too few.
    pub fn take(&mut self, requests: u32) -> bool {
        let left = self.credit.checked_sub(requests.saturating_mul(ANSWERS));
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }
}
