//! Which servers are near: the measured round-trip time of each.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 2.3 and 5: the authors plan to
//! move objects away from servers that deliver poor performance, and cannot measure round trips on
//! Mach. Rule: a server is judged by several recent samples, never by one, and a move needs a
//! factor between two servers, so that noise moves nothing back and forth. What a busy processor adds to
//! samples is noise, too: a server is poor only where the shortest of its last ones is long.

use crate::hedging::ResponseTime;
use crate::identity::HostId;
use std::collections::BTreeMap;
use std::time::Duration;

/// A sample's weight in the smoothed time is one in so many: TCP's gain (RFC 6298).
const GAIN: u32 = 8;
/// The same for the smoothed deviation.
const DEVIATION_GAIN: u32 = 4;

/// Samples before a server is judged: with the gain above, the first one's weight is then below a
/// half.
pub const MIN_SAMPLES: u32 = 6;

/// Samples of which the shortest is a server's distance. With six the last of 1,000 clients that moved had near
/// servers after 10.9 s, by two samples a second; with four after 8.6 s (`selfpage-simulate movement`).
const RECENT: usize = 4;

/// Age at which a server's last sample says nothing any more: the client may have moved.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// A server is poor beside another one whose round trip is so many times shorter.
const POOR_FACTOR: u32 = 2;

/// Differences below this are a wake-up's, not the network's.
const POOR_FLOOR: Duration = Duration::from_micros(100);

/// The round-trip times of the servers that a client measures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyTable {
    servers: BTreeMap<HostId, RoundTrip>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RoundTrip {
    smoothed: Duration,
    /// Of the samples from the smoothed time, smoothed.
    deviation: Duration,
    /// The last samples, in a ring.
    recent: [Duration; RECENT],
    samples: u32,
    last: Duration,
}

impl LatencyTable {
    /// Enters a round trip. One that timed out counts with the time waited.
    pub fn on_sample(&mut self, server: HostId, round_trip: Duration, now: Duration) {
        let first = RoundTrip {
            smoothed: round_trip,
            deviation: round_trip / 2,
            recent: [round_trip; RECENT],
            samples: 0,
            last: now,
        };
        let entry = self.servers.entry(server).or_insert(first);
        if now.saturating_sub(entry.last) > STALE_AFTER {
            *entry = first;
        }
        let off = entry.smoothed.abs_diff(round_trip);
        let kept = entry.deviation - entry.deviation / DEVIATION_GAIN;
        entry.deviation = kept.saturating_add(off / DEVIATION_GAIN);
        let kept = entry.smoothed - entry.smoothed / GAIN;
        entry.smoothed = kept.saturating_add(round_trip / GAIN);
        entry.recent[entry.samples as usize % RECENT] = round_trip;
        entry.samples = entry.samples.saturating_add(1);
        entry.last = now;
    }

    /// Forgets a server.
    pub fn remove(&mut self, server: HostId) {
        self.servers.remove(&server);
    }

    /// The smoothed round-trip time of a server, if it is known well enough.
    pub fn of(&self, server: HostId, now: Duration) -> Option<Duration> {
        let entry = self.servers.get(&server)?;
        let is_fresh = now.saturating_sub(entry.last) <= STALE_AFTER;
        (is_fresh && entry.samples >= MIN_SAMPLES).then_some(entry.smoothed)
    }

    /// The time that a server takes and its deviation, if they are known well enough.
    pub fn response_time(&self, server: HostId, now: Duration) -> Option<ResponseTime> {
        let usual = self.of(server, now)?;
        let deviation = self.servers.get(&server)?.deviation;
        Some(ResponseTime { usual, deviation })
    }

    /// The servers that are known well enough, the nearest first.
    pub fn nearest(&self, now: Duration) -> Vec<HostId> {
        let known = |host: &HostId| Some((self.of(*host, now)?, *host));
        let mut servers: Vec<_> = self.servers.keys().filter_map(known).collect();
        servers.sort_unstable();
        servers.into_iter().map(|(_, host)| host).collect()
    }

    /// The servers beside which `server` is poor, the nearest first.
    pub fn better_than(&self, server: HostId, now: Duration) -> Vec<HostId> {
        let known = self.of(server, now).and_then(|_| self.servers.get(&server));
        let Some(own) = known.and_then(|entry| entry.recent.iter().min().copied()) else {
            return Vec::new();
        };
        let is_better = |other: &HostId| {
            let bound = |time: Duration| time.saturating_mul(POOR_FACTOR).max(time + POOR_FLOOR);
            self.of(*other, now).is_some_and(|time| own > bound(time))
        };
        self.nearest(now).into_iter().filter(is_better).collect()
    }
}
