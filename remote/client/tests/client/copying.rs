//! How a copy gets its pages where replies are late and pages cannot be read.

use crate::interposer::{Direction, Verdict};
use crate::{EIO, PagingServer, count, refuse, refuse_all, wait_until, with_one_copy_of_two};
use remote_wire::{Kind, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A page that is read by another request than the first pages.
const FAR: u64 = 1000;

/// Waits until a server has acknowledged a write of `page` or a later one, and the client knows.
fn wait_for_page(server: &PagingServer, page: u64) {
    let written = count(&server.interposer, move |header, _| {
        header.kind == Kind::Write && header.page.0 >= page
    });
    wait_until("a page is copied", || written.load(Ordering::Relaxed) > 0);
    std::thread::sleep(Duration::from_millis(500));
}

#[test]
fn a_late_read_of_a_copy_that_ended_is_not_taken_for_one_of_the_next() {
    let (servers, mut space) = with_one_copy_of_two();
    space.write(FAR, 4, 1).unwrap();
    let is_read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&is_read);
    let mut near = 0;
    let mut far = 0;
    servers[0]
        .interposer
        .set(move |direction, header, _| match (direction, header.kind) {
            (Direction::ToClient, Kind::ReadReply) if header.page.0 == FAR => {
                far += 1;
                counter.store(far, Ordering::Relaxed);
                match far {
                    1 => Verdict::Delay(Duration::from_millis(1200)),
                    _ => Verdict::Forward,
                }
            }
            (Direction::ToClient, Kind::ReadReply) => {
                near += 1;
                match near {
                    2 => Verdict::Delay(Duration::from_millis(2200)),
                    _ => Verdict::Forward,
                }
            }
            _ => Verdict::Forward,
        });
    servers[1].interposer.clear();
    wait_until("the first copy has come far", || {
        is_read.load(Ordering::Relaxed) > 0
    });
    // It ends here, and another one begins.
    refuse_all(&servers[1].interposer, Kind::Write, Status::Disk);
    space.write(1, 1, 2).unwrap();
    wait_for_page(&servers[1], FAR);

    refuse_all(&servers[0].interposer, Kind::Read, Status::NoObject);
    assert_eq!(space.read(0, 4), Ok(vec![1, 2, 1, 1]));
    assert_eq!(space.read(FAR, 4), Ok(vec![1; 4]));
}

#[test]
fn one_page_that_cannot_be_read_does_not_bar_the_others_from_being_copied() {
    let (servers, mut space) = with_one_copy_of_two();
    servers[0].interposer.set(|direction, header, body| {
        let pages = header.page.0..header.page.0 + u64::from(header.pages);
        match direction == Direction::ToServer && header.kind == Kind::Read && pages.contains(&2) {
            true => refuse(header, body, Status::Disk),
            false => Verdict::Forward,
        }
    });
    wait_for_page(&servers[1], 3);
    // Each of the two copies has what the other lacks: neither is given up.
    assert_eq!(space.read(2, 1), Err(EIO));
    servers[0].interposer.clear();
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));

    refuse_all(&servers[0].interposer, Kind::Read, Status::NoObject);
    assert_eq!(space.read(0, 2), Ok(vec![1; 2]));
    assert_eq!(space.read(3, 1), Ok(vec![1]));
    assert_eq!(space.read(2, 1), Err(EIO));
    space.write(2, 1, 5).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![1, 1, 5, 1]));
}
