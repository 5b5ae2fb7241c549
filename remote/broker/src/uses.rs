//! What clients report of their use of remote memory, for people.
//!
//! Rule: the memory of all reports together is bounded, since each name that a peer uses can have one. One that does
//! not fit is left out: it decides nothing.

use crate::protocol::{ClientUse, ObjectPlace};
use remote_policy::identity::{HostId, Incarnation};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a report is shown after it was made.
const SHOWN: Duration = Duration::from_secs(10);
/// Most reports.
const MAX_REPORTS: usize = 4096;
/// Most memory of all of them: that of a terabyte of objects with two copies each.
const MAX_BYTES: usize = 16 << 20;
/// What the allocator adds to a list.
const LIST: usize = 32;

/// A client's last report.
struct UseReport {
    name: String,
    usage: ClientUse,
    bytes: usize,
    at: Instant,
}

/// The last report of each client.
#[derive(Default)]
pub struct UseTable {
    reports: BTreeMap<Incarnation, UseReport>,
    /// Their memory.
    bytes: usize,
}

impl UseTable {
    /// Enters a report in the place of the client's last one, if there is room for it.
    pub fn insert(&mut self, client: Incarnation, name: String, usage: ClientUse) {
        if let Some(last) = self.reports.remove(&client) {
            self.bytes -= last.bytes;
        }
        let bytes = memory_of(&usage);
        if self.reports.len() < MAX_REPORTS && self.bytes + bytes <= MAX_BYTES {
            self.bytes += bytes;
            let at = Instant::now();
            let report = UseReport {
                name,
                usage,
                bytes,
                at,
            };
            self.reports.insert(client, report);
        }
    }

    /// Forgets reports that no other has followed.
    pub fn forget_old(&mut self) {
        let bytes = &mut self.bytes;
        self.reports.retain(|_, report| {
            let is_shown = report.at.elapsed() < SHOWN;
            *bytes -= if is_shown { 0 } else { report.bytes };
            is_shown
        });
    }

    /// Each client, its host's name and its use.
    pub fn iter(&self) -> impl Iterator<Item = (Incarnation, &str, &ClientUse)> {
        let reports = self.reports.iter();
        reports.map(|(client, report)| (*client, &report.name[..], &report.usage))
    }
}

fn memory_of(usage: &ClientUse) -> usize {
    let list = |hosts: &[HostId]| LIST + size_of_val(hosts);
    let of = |place: &ObjectPlace| list(&place.servers) + list(&place.copying_to);
    let lists: usize = usage.objects.iter().map(of).sum();
    size_of::<UseReport>()
        + size_of_val(&usage.objects[..])
        + size_of_val(&usage.round_trips[..])
        + lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::MAX_OBJECTS;
    use remote_policy::identity::ObjectId;

    fn client(number: u64) -> Incarnation {
        Incarnation::new(HostId(number), 1, 1)
    }

    fn usage(objects: usize) -> ClientUse {
        let place = ObjectPlace {
            object: ObjectId {
                client: HostId(1),
                number: 1,
            },
            redundancy: Default::default(),
            servers: Vec::new(),
            copying_to: Vec::new(),
        };
        ClientUse {
            objects: vec![place; objects],
            ..ClientUse::default()
        }
    }

    #[test]
    fn the_memory_of_all_reports_is_bounded_and_one_that_fits_is_kept() {
        let mut uses = UseTable::default();
        for number in 0..1000 {
            uses.insert(client(number), "greedy".to_owned(), usage(MAX_OBJECTS));
        }
        let kept = uses.iter().count();
        let objects = uses.iter().map(|(_, _, usage)| usage.objects.len()).sum();
        let bytes = size_of::<ObjectPlace>() * std::convert::identity::<usize>(objects);
        assert!(
            kept > 0 && bytes < MAX_BYTES,
            "{kept} reports, {bytes} bytes"
        );
        // A report takes the place of the client's last one.
        for number in 0..kept as u64 {
            uses.insert(client(number), "small".to_owned(), usage(1));
        }
        uses.insert(client(5000), "other".to_owned(), usage(MAX_OBJECTS));
        assert_eq!(uses.iter().count(), kept + 1);
    }

    #[test]
    fn a_report_of_more_objects_than_a_client_reports_is_no_message() {
        for (objects, is_read) in [(MAX_OBJECTS, true), (MAX_OBJECTS + 1, false)] {
            let sent = usage(objects);
            let bytes = postcard::to_stdvec(&sent).unwrap();
            let read = postcard::from_bytes::<ClientUse>(&bytes);
            assert_eq!(read.is_ok_and(|read| read == sent), is_read, "{objects}");
        }
    }
}
