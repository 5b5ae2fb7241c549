//! Client views beside pins of their pages.

mod common;

use common::PAGE;
use space::{AddressSpace, ClientView, MemoryObject, Rights};

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
