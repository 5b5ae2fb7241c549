//! Serves the space of this process to another one.

use crate::address_space::AddressSpace;
use crate::error::SpaceError;
use crate::object::MemoryObject;
use crate::space_protocol::{
    REASON, RemoteSpaceError, SpaceReply, SpaceRequest, receive_message, send_message,
};
use std::os::fd::OwnedFd;

/// What goes back: a message, and an object after it.
type Served = (SpaceReply, Option<MemoryObject>);

pub(crate) fn serve(space: &AddressSpace, socket: &OwnedFd) -> Result<(), RemoteSpaceError> {
    loop {
        let request = match receive_message(socket) {
            Ok(request) => request,
            Err(RemoteSpaceError::Ended) => return Ok(()),
            Err(error) => return Err(error),
        };
        let (reply, object) = perform(space, request, socket).unwrap_or_else(|error| {
            let mut reason = error.to_string();
            let cut = (0..=REASON).rev().find(|at| reason.is_char_boundary(*at));
            reason.truncate(cut.unwrap_or(0));
            (SpaceReply::Refused(reason), None)
        });
        send_message(socket, &reply)?;
        if let Some(object) = object {
            object.send(socket)?;
        }
    }
}

fn perform(
    space: &AddressSpace,
    request: SpaceRequest,
    socket: &OwnedFd,
) -> Result<Served, SpaceError> {
    let done = |()| (SpaceReply::Done, None);
    let address = |addr| (SpaceReply::Address(addr), None);
    match request {
        SpaceRequest::Reserve {
            addr,
            size,
            section,
        } => space.reserve(addr, size, section).map(address),
        SpaceRequest::Commit { addr, size, flags } => space.commit(addr, size, flags).map(done),
        SpaceRequest::Protect { addr, size, rights } => space.protect(addr, size, rights).map(done),
        SpaceRequest::Decommit { addr, size } => space.decommit(addr, size).map(done),
        SpaceRequest::Deallocate { addr, size } => space.deallocate(addr, size).map(done),
        SpaceRequest::Map {
            addr,
            size,
            offset,
            flags,
        } => {
            let object = MemoryObject::receive(socket)?;
            space.map(addr, size, &object, offset, flags).map(address)
        }
        SpaceRequest::Object { addr, size } => {
            Ok((SpaceReply::Done, Some(space.memory_object(addr, size)?)))
        }
        SpaceRequest::Status => Ok((SpaceReply::Status(space.memory_status()), None)),
    }
}
