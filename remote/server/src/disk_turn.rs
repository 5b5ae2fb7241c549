//! The disk's part of a turn: what has completed, and the requests that waited for it.

use crate::disk_io::{Completion, Transfer};
use crate::event_loop::EventLoop;
use crate::page_service::{PageService, Progress};
use crate::pending::PendingRequest;
use crate::refusal::Refusal;
use disk::time::Nanos;
use remote_wire::{Kind, Status};
use std::io;

impl EventLoop {
    /// Takes what the disk has completed, and serves what waited for it.
    pub(crate) fn reap_disk(&mut self) {
        let mut has_completed = false;
        while let Some(completion) = self.service.disk.as_mut().and_then(|disk| disk.reap()) {
            has_completed = true;
            self.on_completion(completion);
        }
        if !has_completed {
            return;
        }
        for number in self.service.pending.numbers() {
            self.retry(number);
        }
        for slot in self.connections.slots() {
            if let Some(connection) = self.connections.get_mut(slot)
                && std::mem::take(&mut connection.is_blocked)
            {
                self.connections.activate(slot);
            }
        }
    }

    /// Hands the disk what was started.
    pub(crate) fn submit_disk(&mut self) {
        let submitted = self.service.disk.as_mut().map(|disk| disk.submit());
        if let Some(Err(why)) = submitted {
            let now = self.service.issuer.now();
            self.log
                .warn(now, format_args!("the disk takes no requests: {why}"));
        }
    }

    fn on_completion(&mut self, completion: Completion) {
        let Completion {
            transfer,
            page,
            request,
            error,
        } = completion;
        let has_failed = error.is_some();
        let checked = match transfer {
            Transfer::Store => {
                self.service.memory.on_stored(page, has_failed);
                Ok(())
            }
            Transfer::Load => self.service.memory.on_loaded(page, has_failed),
        };
        let error = error.map(io::Error::from_raw_os_error);
        let now = self.service.issuer.now();
        let log = &mut self.log;
        if let Some(why) = &error {
            log.warn(
                now,
                format_args!("the disk failed to {transfer:?} a page: {why}"),
            );
        }
        if let Err(why) = &checked {
            log.warn(now, format_args!("{why}: reads of it are refused"));
        }
        if let Some(pending) = self.service.pending.get_mut(request) {
            pending.outstanding -= 1;
            pending.has_failed |= error.is_some() || checked.is_err();
        }
    }

    /// Serves a request that waits for nothing of its own any more, if it can be served.
    fn retry(&mut self, number: u32) {
        let Some(&mut request) = self.service.pending.get_mut(number) else {
            return;
        };
        if request.outstanding > 0 {
            return;
        }
        let served = match request.header.kind {
            _ if request.has_failed => Err(failed(&request)),
            Kind::Read => match self.read_again(number, &request) {
                Ok(Progress::Done) => Ok(()),
                Ok(Progress::Waits { started }) => {
                    if let Some(pending) = self.service.pending.get_mut(number) {
                        pending.outstanding = started;
                    }
                    return;
                }
                Ok(Progress::Blocked) => return,
                Err(why) => Err(why),
            },
            _ => Ok(()),
        };
        self.service.pending.remove(number);
        let now = self.now();
        let elapsed = Nanos(now.0 - request.started.0);
        let schedule = &mut self.service.issuer.schedule;
        schedule.complete(now, request.ticket, elapsed);
        // A write is acknowledged before the disk has its pages.
        if request.header.kind == Kind::Write {
            return;
        }
        if let Some(connection) = self.connections.find(request.connection) {
            connection.remove_pending(PageService::reply_body(&request.header));
            self.reply(&request, served);
            self.connections.activate(request.connection.slot);
        }
    }

    fn read_again(&mut self, number: u32, request: &PendingRequest) -> Result<Progress, Refusal> {
        match self.connections.find(request.connection) {
            Some(connection) => self.service.read(
                request.client,
                &request.header,
                number,
                &mut connection.writer,
            ),
            // Its connection is gone, and its reply with it.
            None => Ok(Progress::Done),
        }
    }
}

fn failed(request: &PendingRequest) -> Refusal {
    let header = &request.header;
    let text = format!(
        "the server's disk failed for pages of {} from {} on: see the server's log",
        header.object, header.page.0
    );
    Refusal::new(Status::Disk, text)
}
