//! A client whose manager was killed: its thread in the next manager begins where the other's ended.
//!
//! 1. Messages that were read and had not taken effect take effect.
//! 2. The file of an unfinished save is removed, and its write protection ends.
//! 3. Pages that were moving are brought in, as after a fault, each when all events are read.
//! 4. All threads that wait are woken: the kernel does not repeat a fault that was read, but they fault again.
//!
//! Each step may be repeated, so that this manager may be killed, too.

use super::pager::unit_of;
use super::{ClientParts, HandlerThread};
use selfpage::Replacement;
use std::io;
use translation::Fault;

impl HandlerThread {
    /// Prepares a client from what was kept of it.
    pub fn resume(parts: ClientParts) -> io::Result<Self> {
        let mut client = Self::new(parts)?;
        let moving = client.pager.table.resume();
        client.restore_order();
        client.take_left_messages();
        client.remove_unfinished_file();
        client.pager.unprotect();
        for page in moving {
            let addr = client.pager.table.addr(page);
            client.queue.push(Fault {
                addr,
                ..Fault::default()
            });
        }
        client.pager.wake_all();
        client.pager.counters.restarts.add(1);
        client.pager.count_resident();
        Ok(client)
    }

    /// The units with residents, in the order of their numbers: that of their faults is not known any more.
    pub(super) fn restore_order(&mut self) {
        let pager = &mut self.pager;
        for pages in pager.table.mapped() {
            let residents = pages.filter(|page| pager.table.get(*page).is_resident());
            if let Some(contract) = &mut pager.contract {
                for page in residents {
                    contract.order.filled(unit_of(page));
                }
            }
        }
    }

    fn take_left_messages(&mut self) {
        for at in 0..self.pager.record.messages().len() {
            if let Some(message) = self.pager.slot(at).left_message() {
                self.on_message(message);
            }
            self.pager.slot(at).clear();
        }
        // Their threads are woken.
        self.queue.clear();
    }

    fn remove_unfinished_file(&self) {
        let record = &self.pager.record;
        if let Some(path) = record.unfinished_file() {
            tracing::warn!(
                "the save of client {} was not finished when the manager was killed: {} is removed; save again",
                record.number(),
                path.display()
            );
            let _ = rustix::fs::unlink(&path);
            record.end_file();
        }
    }
}
