//! Client views beside pins of their pages, and beside operations on their addresses.

mod common;

use common::{PAGE, alone, bytes};
use space::{AddressSpace, ClientView, MemoryObject, Rights, SpaceError};

/// A view of an object of the client's to be read and written, and where it is.
fn view<'a>(space: &'a AddressSpace, object: &MemoryObject) -> (ClientView<'a>, usize) {
    let mut view = space
        .client_view(object, Rights::READ | Rights::WRITE)
        .unwrap();
    let at = view.begin().translate(0, 1).unwrap().expose_provenance();
    (view, at)
}

#[test]
fn a_call_that_may_see_scratch_pages_of_an_earlier_one_reports_a_fault() {
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(2 * PAGE as u64).unwrap();
    let (mut view, at) = view(&space, &object);
    object.set_len(PAGE as u64).unwrap();
    let call = view.begin();
    call.write(PAGE, b"of the first call").unwrap();
    let pin = space.pin(at + PAGE, PAGE).unwrap();
    call.end().unwrap_err();

    object.set_len(2 * PAGE as u64).unwrap();
    rustix::io::pwrite(object.as_fd(), b"of the client's", PAGE as u64).unwrap();
    for _ in 0..2 {
        let fault = view.begin().end().unwrap_err();
        assert_eq!((fault.count, fault.offset), (1, PAGE));
    }
    drop(pin);
    let call = view.begin();
    let mut read = [0; 15];
    call.read(PAGE, &mut read).unwrap();
    assert_eq!(&read, b"of the client's");
    assert_eq!(call.end(), Ok(()));
}

#[test]
fn a_pinned_page_of_the_clients_is_no_fault_of_later_calls() {
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(2 * PAGE as u64).unwrap();
    let (mut view, at) = view(&space, &object);
    let pin = space.pin(at, PAGE).unwrap();
    object.set_len(PAGE as u64).unwrap();
    let call = view.begin();
    call.read(PAGE, &mut [0]).unwrap();
    call.end().unwrap_err();
    let call = view.begin();
    call.read(0, &mut [0]).unwrap();
    assert_eq!(call.end(), Ok(()));
    drop(pin);
}

#[test]
fn the_addresses_of_a_view_are_its_own_until_it_ends() {
    let _alone = alone();
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(4 * PAGE as u64).unwrap();
    let (mut view, at) = view(&space, &object);
    let call = view.begin();
    for (addr, pages) in [(at, 4), (at + PAGE, 1)] {
        let refused = space.deallocate(addr, pages * PAGE);
        assert!(
            matches!(&refused, Err(SpaceError::View { range }) if range.start == at),
            "{refused:?}"
        );
    }
    call.write(3 * PAGE, &[7]).unwrap();
    assert_eq!(call.end(), Ok(()));
    let mut written = [0];
    rustix::io::pread(object.as_fd(), &mut written, 3 * PAGE as u64).unwrap();
    assert_eq!(written, [7]);
    drop(view);
    let refused = space.deallocate(at, 4 * PAGE);
    assert!(matches!(refused, Err(SpaceError::NotReserved { .. })));
}

#[test]
fn a_space_releases_the_addresses_of_a_view_that_never_ended() {
    let _alone = alone();
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(PAGE as u64).unwrap();
    let (forgotten, at) = view(&space, &object);
    std::mem::forget(forgotten);
    drop(space);
    let next = AddressSpace::without_domain(8).unwrap();
    assert_eq!(next.reserve(Some(at), PAGE, false).unwrap(), at);
}

#[test]
fn a_view_that_ends_before_pins_of_its_pages_is_released_with_the_last_of_them() {
    let _alone = alone();
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(2 * PAGE as u64).unwrap();
    let (mut view, at) = view(&space, &object);
    view.begin().write(PAGE, &[7]).unwrap();
    let pins = [0, 1].map(|page| space.pin(at + page * PAGE, PAGE).unwrap());
    drop(view);
    for pin in pins {
        // SAFETY: pinned by the last pin.
        assert_eq!(unsafe { bytes(at + PAGE, 1) }, [7]);
        assert_eq!(space.memory_status().mapped, 2 * PAGE as u64);
        drop(pin);
    }
    assert_eq!(space.memory_status().mapped, 0);
    assert_eq!(space.query(at), None);
}
