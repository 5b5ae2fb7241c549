//! A userfaultfd that its owner handed over, and changes. The test process has both descriptors.

mod common;
use common::*;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::os::fd::AsFd;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use translation::{EntryKind, Errno, ForeignUserfault, MessageSlot, Userfault};

#[test]
fn a_read_returns_at_once_where_the_owner_has_cleared_nonblock_which_it_may_once() {
    let own = match Userfault::open(EntryKind::Thread, &capabilities()) {
        Ok(own) => own,
        Err(refused) => return skipped(&refused.to_string()),
    };
    let is_nonblocking = || fcntl_getfl(&own).unwrap().contains(OFlags::NONBLOCK);
    let into_slots = |it: &ForeignUserfault| it.read_into(&[MessageSlot::default()]);
    let decoded = |it: &ForeignUserfault| it.read(&mut [None]);
    for read in [into_slots, decoded] as [fn(&ForeignUserfault) -> Result<usize, Errno>; 2] {
        let sent = own.as_fd().try_clone_to_owned().unwrap();
        let received = ForeignUserfault::adopt(sent).unwrap();
        let (results, reader) = sync_channel(1);
        let (turns, turn) = sync_channel(1);
        std::thread::spawn(move || {
            turn.iter()
                .for_each(|()| results.send(read(&received)).unwrap())
        });
        for (expected, ends_set) in [(Ok(0), true), (Err(Errno::BADFD), false)] {
            fcntl_setfl(&own, OFlags::empty()).unwrap();
            turns.send(()).unwrap();
            let result = reader.recv_timeout(Duration::from_secs(30));
            assert_eq!(result.expect("the read waits"), expected);
            assert_eq!(is_nonblocking(), ends_set);
        }
    }
}
