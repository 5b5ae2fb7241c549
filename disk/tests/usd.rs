//! The disk's thread on a real file, with clients that submit by real channels.

mod tenant;

use disk::atropos::{AdmissionError, DiskContract};
use disk::cost_model::OpCost;
use disk::time::Nanos;
use disk::trace::TraceEvent;
use disk::usd::{IoTarget, Usd, UsdConfig, UsdEvent};
use iochannel::{MAX_RUN, ProtocolError};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tenant::*;

fn failed(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

#[test]
fn written_pages_read_back_across_extent_ends() {
    let mut machine = Machine::new();
    let backing = machine.file(4 * MIB);
    let IoTarget::Swap(extents) = &backing else {
        unreachable!()
    };
    assert!(extents.list().len() > 1);
    let usd = machine.start(quick());
    let mut tenant = Tenant::new(&usd, plenty(), Some(backing));
    let channel = &mut tenant.channel;
    for first in (0..1024).step_by(MAX_RUN) {
        channel.write(1, first, MAX_RUN);
    }
    // Page 256 is the first of the second extent.
    channel.write(2, 250, 13);
    channel.check(1, 0, 20);
    channel.check(2, 250, 13);
    channel.check(2, 255, 2);
    channel.check(1, 263, MAX_RUN);
    channel.check(1, 1023, 1);
    let figures = usd.client_stats(tenant.id).unwrap();
    assert_eq!((figures.totals.transactions, figures.failed), (38, 0));
    assert_eq!(figures.latency.unwrap().len(), 38);
}

#[test]
fn many_clients_with_many_channels_each_find_their_own_pages() {
    let mut machine = Machine::new();
    let usd = machine.start(quick());
    std::thread::scope(|scope| {
        for of in 1..=4 {
            let tenant = Tenant::new(&usd, plenty(), Some(machine.file(2 * MIB)));
            let second = Channel::new(&usd, tenant.id, &tenant.doorbell);
            for (mine, mut channel) in [(0, tenant.channel), (256, second)] {
                scope.spawn(move || {
                    (0..256)
                        .step_by(8)
                        .for_each(|at| channel.write(of, mine + at, 8));
                    (0..256)
                        .step_by(2)
                        .for_each(|at| channel.check(of, mine + at, 2));
                });
            }
        }
    });
    assert_eq!(usd.disk_stats().in_flight, 0);
}

#[test]
fn a_request_outside_its_file_fails_and_harms_no_other() {
    let mut machine = Machine::new();
    let usd = machine.start(quick());
    let mut one = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
    let mut other = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
    other.channel.write(2, 0, 4);
    for first in [255, 256, 1 << 30] {
        let result = one.channel.transfer(true, &mut pages(1, 0, 2), first);
        assert_eq!(result, failed(Errno::INVAL));
    }
    one.channel.write(1, 254, 2);
    other.channel.check(2, 0, 4);
    assert_eq!(usd.client_stats(one.id).unwrap().failed, 3);
}

#[test]
fn a_device_error_reaches_the_client() {
    let mut machine = Machine::new();
    let backing = machine.file(MIB);
    let device = open(
        machine.path("swap"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let usd = Usd::start(std::sync::Arc::new(device.unwrap()), quick()).unwrap();
    let mut tenant = Tenant::new(&usd, plenty(), Some(backing));
    let result = tenant.channel.transfer(true, &mut pages(1, 0, 1), 0);
    assert_eq!(result, failed(Errno::BADF));
    assert_eq!(
        tenant.channel.transfer(false, &mut pages(1, 0, 1), 0),
        PAGE as i32
    );
}

#[test]
fn a_client_that_corrupts_its_channel_is_cut_off_alone() {
    let mut machine = Machine::new();
    let usd = machine.start(quick());
    let mut bad = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
    let mut good = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
    bad.channel.write(1, 0, 1);
    good.channel.write(2, 0, 1);
    // The tail of its requests: more than any channel has.
    // SAFETY: a fresh mapping of the first page, whose words are atomics.
    let words = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        mmap(
            null,
            PAGE,
            protection,
            MapFlags::SHARED,
            &bad.channel.memory,
            0,
        )
        .unwrap()
    };
    // SAFETY: aligned, and within the page.
    let tail = unsafe { AtomicU32::from_ptr(words.cast::<u32>().add(384 / 4)) };
    tail.fetch_add(100_000, Ordering::SeqCst);
    rustix::io::write(bad.doorbell.share().unwrap(), &1u64.to_ne_bytes()).unwrap();
    let UsdEvent::CutOff { channel, why } = news(&usd) else {
        panic!()
    };
    assert_eq!(channel, bad.channel.id);
    assert!(matches!(why, ProtocolError::Overrun { .. }), "{why}");
    assert_eq!(news(&usd), UsdEvent::Closed(channel));
    good.channel.check(2, 0, 1);
    // Its other channels still work; the owner decides about its removal.
    Channel::new(&usd, bad.id, &bad.doorbell).check(1, 0, 1);
    // SAFETY: mapped above, used no more.
    unsafe { munmap(words, PAGE).unwrap() };
}

#[test]
fn a_channel_that_its_client_has_dropped_is_closed() {
    let mut machine = Machine::new();
    let usd = machine.start(quick());
    let mut tenant = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
    let mut other = Channel::new(&usd, tenant.id, &tenant.doorbell);
    tenant.channel.write(1, 0, 1);
    other.check(1, 0, 1);
    let id = other.id;
    drop(other.client);
    assert_eq!(news(&usd), UsdEvent::Closed(id));
    tenant.channel.check(1, 0, 1);
}

#[test]
fn requests_wait_until_the_client_has_a_target() {
    let mut machine = Machine::new();
    let usd = machine.start(quick());
    let mut tenant = Tenant::new(&usd, plenty(), None);
    let pieces_of = &mut pages(5, 0, 2);
    let pieces = pieces(pieces_of);
    // SAFETY: the pages outlive the operation, which ends below.
    unsafe { tenant.channel.client.begin(0, true, &pieces, 0) };
    tenant.channel.client.flush();
    assert_eq!(tenant.channel.client.reap(false), None);
    usd.set_target(tenant.id, machine.file(MIB), same(&tenant.doorbell));
    assert_eq!(tenant.channel.client.reap(true), Some((0, 2 * PAGE as i32)));
    // The target has grown.
    let result = tenant.channel.transfer(true, &mut pages(5, 300, 1), 300);
    assert_eq!(result, failed(Errno::INVAL));
    usd.set_target(tenant.id, machine.file(2 * MIB), same(&tenant.doorbell));
    tenant.channel.write(5, 300, 1);
}

#[test]
fn a_file_of_the_clients_own_is_read_to_its_end_and_written_only_if_it_may_be() {
    let machine = Machine::new();
    let usd = machine.start(quick());
    let path = machine.path("file");
    let bytes: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let fd = |flags| {
        open(
            &path,
            flags | OFlags::DIRECT | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap()
    };
    let file = |flags, writable| IoTarget::File {
        fd: fd(flags),
        size: 10_000,
        writable,
    };
    let mut reader = Tenant::new(&usd, plenty(), Some(file(OFlags::RDONLY, false)));
    let mut read = vec![Page([7; PAGE]); 3];
    let moved = reader.channel.transfer(false, &mut read, 0);
    assert_eq!(moved, 3 * PAGE as i32);
    assert_eq!(read[1].0[..], bytes[PAGE..2 * PAGE]);
    let rest = 10_000 - 2 * PAGE;
    assert_eq!(read[2].0[..rest], bytes[2 * PAGE..]);
    assert!(read[2].0[rest..].iter().all(|&byte| byte == 0));
    assert_eq!(reader.channel.transfer(false, &mut read, 8), 0);
    let refused = reader.channel.transfer(true, &mut pages(1, 0, 1), 0);
    assert_eq!(refused, failed(Errno::BADF));
    let mut writer = Tenant::new(&usd, plenty(), Some(file(OFlags::RDWR, true)));
    writer.channel.write(3, 0, 2);
    reader.channel.check(3, 0, 2);
    let refused = writer.channel.transfer(true, &mut pages(1, 0, 1), 2);
    assert_eq!(refused, failed(Errno::FBIG));
}

#[test]
fn closing_a_channel_or_removing_its_client_is_an_event() {
    let mut machine = Machine::new();
    let usd = machine.start(quick());
    let mut tenant = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
    tenant.channel.write(1, 0, 3);
    let second = Channel::new(&usd, tenant.id, &tenant.doorbell);
    usd.close_channel(second.id);
    assert_eq!(news(&usd), UsdEvent::Closed(second.id));
    assert_eq!(usd.next_event(), None);
    usd.remove(tenant.id);
    assert_eq!(news(&usd), UsdEvent::Closed(tenant.channel.id));
    assert!(usd.client_stats(tenant.id).is_none());
    assert_eq!(usd.change(tenant.id, plenty()), Err(AdmissionError::Gone));
    // A channel of a removed client is closed at once.
    let late = Channel::new(&usd, tenant.id, &tenant.doorbell);
    assert_eq!(news(&usd), UsdEvent::Closed(late.id));
    // Its share can be promised again.
    let whole = DiskContract::new(Nanos::millis(100), Nanos::millis(100));
    assert!(usd.admit(whole).is_ok());
    let Err(AdmissionError::Capacity { clients: 1, .. }) = usd.admit(whole) else {
        panic!()
    };
}

#[test]
fn requests_not_started_are_done_by_the_next_disk() {
    let mut machine = Machine::new();
    let first = machine.file(MIB);
    let usd = machine.start(slow());
    let mut tenant = Tenant::new(&usd, contract(10, 200), Some(first));
    let mut written = pages(9, 0, 12);
    let all: Vec<_> = written.chunks_mut(1).map(pieces).collect();
    for (op, pieces) in all.iter().enumerate() {
        // SAFETY: the pages outlive the operations, which end below.
        unsafe {
            tenant
                .channel
                .client
                .begin(op, true, pieces, (op * PAGE) as u64)
        };
    }
    tenant.channel.client.flush();
    let heard = tenant.channel.client.reap(true).unwrap();
    // Its slice is for one or two of them; after that it waits for a while.
    drop(usd);
    let usd = machine.start(quick());
    let id = usd.admit(plenty()).unwrap();
    let extents = machine.fs.extents(machine.fs.files()[0].id()).unwrap();
    usd.set_target(id, IoTarget::Swap(extents), same(&tenant.doorbell));
    usd.add_channel(id, tenant.channel.succeed());
    let mut over = vec![heard.0];
    while over.len() < 12 {
        let (op, result) = tenant.channel.client.reap(true).unwrap();
        assert_eq!(result, PAGE as i32);
        over.push(op);
    }
    over.sort_unstable();
    assert!(over.into_iter().eq(0..12));
    tenant.channel.check(9, 0, 12);
}

/// Transactions modelled to take ten milliseconds, on a disk without a bound: the correction would
/// notice a quicker device and change the charges.
fn slow() -> UsdConfig {
    let class = OpCost {
        base: Nanos::millis(10),
        per_kib: Nanos::ZERO,
    };
    let mut settings = quick();
    settings.model.read = class;
    settings.model.write = class;
    settings.bound = Nanos::seconds(1);
    settings
}

#[test]
fn clients_are_charged_by_contract_and_the_trace_agrees() {
    let mut machine = Machine::new();
    let usd = machine.start(slow());
    let tenants = [20, 60].map(|slice| {
        let contract = DiskContract::new(Nanos::millis(slice), Nanos::millis(200));
        Tenant::new(&usd, contract, Some(machine.file(MIB)))
    });
    let [one, three] = tenants.map(|mut tenant| {
        std::thread::spawn(move || {
            let mut written = pages(1, 0, 16);
            let all: Vec<_> = written.chunks_mut(1).map(pieces).collect();
            let client = &mut tenant.channel.client;
            let count = 16 * if tenant.id.number() == 0 { 1 } else { 3 };
            // Completions need not arrive in the order of requests.
            let mut free: Vec<usize> = (0..16).collect();
            let mut begun = 0;
            for _ in 0..count {
                while begun < count
                    && let Some(slot) = free.pop()
                {
                    // SAFETY: the pages outlive the operations, all of which end here.
                    unsafe { client.begin(slot, true, &all[slot], 0) };
                    begun += 1;
                }
                client.flush();
                let (slot, moved) = client.reap(true).unwrap();
                assert_eq!(moved, PAGE as i32);
                free.push(slot);
            }
            tenant.id
        })
    });
    let [one, three] = [one, three].map(|thread| thread.join().unwrap());
    let figures = [one, three].map(|id| usd.client_stats(id).unwrap());
    assert_eq!(figures[0].totals.charged, Nanos::millis(160));
    assert_eq!(figures[1].totals.charged, Nanos::millis(480));
    assert!(
        figures
            .iter()
            .all(|client| client.totals.slack == Nanos::ZERO)
    );
    // Eight periods of two transactions, and of six.
    assert!(
        figures.iter().all(|client| client.totals.periods >= 7),
        "{figures:?}"
    );
    let seen = usd.trace().all();
    let charged = |client: u32| -> u64 {
        let charge = |event: &TraceEvent| match event {
            TraceEvent::Transaction { charge, .. } if event.client() == client => charge.0,
            _ => 0,
        };
        seen.events.iter().map(charge).sum()
    };
    assert_eq!(
        [one, three].map(|id| charged(id.number())),
        figures.map(|client| client.totals.charged.0)
    );
    assert!(usd.disk_stats().sleeps > 0);
    assert!(usd.disk_stats().processor > Duration::ZERO);
}

#[test]
fn with_a_bound_of_zero_the_disk_does_one_transaction_at_a_time_and_charges_elapsed_time() {
    let mut machine = Machine::new();
    let settings = UsdConfig {
        bound: Nanos::ZERO,
        ..quick()
    };
    let usd = machine.start(settings);
    std::thread::scope(|scope| {
        for of in 1..=3 {
            let mut tenant = Tenant::new(&usd, plenty(), Some(machine.file(MIB)));
            scope.spawn(move || {
                (0..200).for_each(|at| tenant.channel.write(of, at, 1));
            });
        }
    });
    let mut over = disk::time::Time(0);
    let mut count = 0;
    for event in usd.trace().all().events {
        if let TraceEvent::Transaction {
            started,
            elapsed,
            charge,
            ..
        } = event
        {
            count += 1;
            // One that the device holds up for longer is overdue, and the next begins.
            if elapsed >= Nanos::millis(50) {
                continue;
            }
            assert!(started >= over, "{event:?}");
            // Where the disk, or its thread, was held up, no client pays more than its slice.
            assert!(charge == elapsed || charge >= plenty().slice, "{event:?}");
            over = started + elapsed;
        }
    }
    assert_eq!(count, 600);
}
