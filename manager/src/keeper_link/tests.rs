//! Messages between a manager and its keeper.

use super::*;

#[test]
fn descriptors_arrive_with_what_they_are() {
    let (keeper, manager) = seqpacket::pair().unwrap();
    let slot = KeeperLink::new(manager, false).slot(7);
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let fd = file.as_fd();
    slot.keep(&[(KeptPart::Record, fd), (KeptPart::Store, fd)])
        .unwrap();
    let releasing = std::thread::spawn(move || slot.release());
    let next = || KeeperRequest::decode(seqpacket::receive(&keeper, RecvFlags::empty()).unwrap());
    let Some(KeeperRequest::Keep(7, parts, None)) = next() else {
        panic!("no descriptors");
    };
    let kinds: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
    assert_eq!(kinds, [KeptPart::Record, KeptPart::Store]);
    let release = next();
    assert!(matches!(release, Some(KeeperRequest::Release(7, Some(_)))));
    assert!(!releasing.is_finished(), "the keeper has the client still");
    drop(release);
    releasing.join().unwrap();
    for (at, part) in PARTS.iter().enumerate() {
        assert_eq!(*part as usize, at);
    }
}

#[test]
fn children_arrive_with_their_numbers_beside_those_that_have_ended() {
    let (keeper, manager) = seqpacket::pair().unwrap();
    let slot = KeeperLink::new(manager, false).slot(7);
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    slot.keep_children(&[3, 400], &[(5, file.as_fd()), (0, file.as_fd())]);
    let message = seqpacket::receive(&keeper, RecvFlags::empty()).unwrap();
    let Some(KeeperRequest::KeepChildren(7, ended, new)) = KeeperRequest::decode(message) else {
        panic!("no children");
    };
    let new: Vec<_> = new.iter().map(|(number, _)| *number).collect();
    assert_eq!((ended, new), (vec![3, 400], vec![5, 0]));
}

#[test]
fn descriptors_that_systemd_is_to_have_are_confirmed_or_not() {
    let (keeper, manager) = seqpacket::pair().unwrap();
    let slot = KeeperLink::new(manager, true).slot(7);
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let (sender, outcomes) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..4 {
            let kept = slot.keep(&[(KeptPart::Record, file.as_fd())]);
            let outcome = kept.map_or_else(|why| why.to_string(), |()| "kept".to_owned());
            sender.send(outcome).unwrap();
        }
    });
    let mut ends = Vec::new();
    let mut next = || {
        let outcome = outcomes.recv().unwrap();
        ends.push(outcome.rsplit(": ").next().unwrap().to_owned());
    };
    for outcome in [Some(Ok(())), Some(Err("full")), None] {
        let request =
            KeeperRequest::decode(seqpacket::receive(&keeper, RecvFlags::empty()).unwrap());
        let Some(KeeperRequest::Keep(7, parts, Some(to))) = request else {
            panic!("{request:?}");
        };
        assert_eq!(parts.len(), 1);
        if let Some(outcome) = outcome {
            confirm(to, outcome);
        } else {
            drop(to);
        }
        next();
    }
    drop(keeper);
    next();
    let lost = "Too many open files (os error 24)";
    assert_eq!(ends, ["kept", "full", lost, "the keeper has ended"]);
}

#[test]
fn a_message_that_has_lost_descriptors_is_kept_in_no_part() {
    let (keeper, manager) = seqpacket::pair().unwrap();
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut message = head(KEEP, 7).to_vec();
    message.extend([CONFIRMATION, 0, 1]);
    let fds = [file.as_fd(), file.as_fd()];
    seqpacket::send(&manager, &message, &fds, SendFlags::empty()).unwrap();
    let request = KeeperRequest::decode(seqpacket::receive(&keeper, RecvFlags::empty()).unwrap());
    assert!(matches!(request, Some(KeeperRequest::Truncated(Some(_)))));
}

#[test]
fn a_connection_arrives_with_its_slot() {
    let (keeper, manager) = seqpacket::pair().unwrap();
    let link = KeeperLink::new(manager, false);
    let (near, far) = UnixStream::pair().unwrap();
    send_arrival(&keeper, 3, far.as_fd()).unwrap();
    drop((far, keeper));
    let (slot, connection) = link.receive().unwrap();
    assert_eq!(slot, 3);
    drop(near);
    let mut connection = connection.unwrap();
    assert_eq!(std::io::Read::read(&mut connection, &mut [0]).unwrap(), 0);
    assert!(link.receive().is_none(), "the keeper has ended");
    link.slot(3).keep(&[]).unwrap();
}
