//! Starts the transactions that the scheduler names, on a device or through a transport.

use super::background::BACKGROUND_TAG;
use super::client::client_at;
use super::ring::RingEvent;
use super::thread::{DiskThread, untag};
use super::transaction::{DevicePart, Place, place_of};
use super::transport::PartId;
use crate::atropos::{Decision, Dispatch};
use crate::time::{Nanos, Time};
use iochannel::{MAX_RUN, Op};
use rustix::io::Errno;

/// What the scheduler decided in one turn.
#[derive(Default)]
pub(super) struct Scheduled {
    /// A transaction was started.
    pub started: bool,
    /// The bound of what is in flight is reached.
    pub full: bool,
    /// When to schedule again.
    pub until: Option<Time>,
}

impl DiskThread {
    /// Starts transactions as long as the scheduler names one.
    pub(super) fn schedule(&mut self, now: Time) -> Scheduled {
        let mut scheduled = Scheduled::default();
        while self.stopped.is_none() {
            match self.atropos.next(now) {
                Decision::Dispatch(start) => self.start(now, &start),
                Decision::WaitUntil(until) => {
                    scheduled.until = Some(until);
                    break;
                }
                Decision::Full(until) => {
                    (scheduled.full, scheduled.until) = (true, Some(until));
                    break;
                }
                Decision::Idle => break,
            }
            scheduled.started = true;
        }
        scheduled
    }

    fn start(&mut self, now: Time, start: &Dispatch) {
        if start.job.tag == BACKGROUND_TAG {
            if let (Some(own), Some(transport)) = (&mut self.background, &mut self.transport) {
                own.start(now, start.ticket, &mut self.atropos, &mut **transport);
            }
            return;
        }
        let (at, number) = untag(start.job.tag);
        let Some(client) = client_at(&mut self.clients, at) else {
            return;
        };
        let transaction = &mut client.window[number as usize];
        transaction.started = now;
        client.counted.on_start(now - transaction.taken);
        transaction.ticket = start.ticket;
        if transaction.orphan {
            client.release_slot(number);
            return self.atropos.complete(now, start.ticket, Nanos::ZERO);
        }
        let mut parts = [DevicePart::default(); MAX_RUN];
        let made = match &client.target {
            Some(target) => transaction.parts(target, &mut parts),
            None => Err(Errno::INVAL),
        };
        let (made, place) = match (made, client.target.as_ref()) {
            (Ok(made), Some(target)) => (made, place_of(target, self.device.as_deref())),
            (made, _) => (0, Err(made.err().unwrap_or(Errno::INVAL))),
        };
        let place = match place {
            Ok(place) => place,
            Err(errno) => {
                transaction.result = -errno.raw_os_error();
                return self.complete(now, at, number);
            }
        };
        transaction.in_flight = made;
        let (op, id) = (transaction.op, transaction.channel);
        if let Some(channel) = client.channel(id) {
            channel.in_flight += made;
        }
        for part in &parts[..made] {
            if let Err(errno) = self.start_part(now, (at, number), op, place, part) {
                self.on_part_completed(now, at, number, -errno.raw_os_error());
            }
        }
    }

    /// Completes transactions for the scheduler that wait for the other end of the transport. Returns true if there were any.
    pub(super) fn set_waiting_aside(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(part) = self.transport.as_mut().and_then(|it| it.next_waiting()) {
            any = true;
            let Some(client) = client_at(&mut self.clients, part.client) else {
                continue;
            };
            if client.set_waiting(part.transaction) {
                let waiting = &client.window[part.transaction as usize];
                let elapsed = now - waiting.started;
                self.atropos.complete(now, waiting.ticket, elapsed);
            }
        }
        any
    }

    /// Starts a part of a client's transaction on its place.
    fn start_part(
        &mut self,
        now: Time,
        (at, number): (u32, u32),
        op: Op,
        place: Place,
        part: &DevicePart,
    ) -> Result<(), Errno> {
        let client = client_at(&mut self.clients, at).ok_or(Errno::INVAL)?;
        let pieces = client.window[number as usize].memory(part);
        match place {
            Place::Descriptor(fd) => {
                let then = RingEvent::Part {
                    client: at,
                    transaction: number,
                };
                // SAFETY: the memory is a channel's, which is released when nothing of it is in
                // flight; the pieces stay in the window until the transaction completes.
                unsafe { self.ring.start(op, fd, pieces, part.at, then) }
            }
            Place::Space(space) => {
                let transport = self.transport.as_mut().ok_or(Errno::NODEV)?;
                let id = PartId {
                    client: at,
                    transaction: number,
                };
                // SAFETY: as above.
                unsafe { transport.start(now, id, op, space, pieces, part.at) };
                Ok(())
            }
        }
    }
}
