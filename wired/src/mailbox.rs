//! Commands of several threads to one thread, one at a time.

use crate::{Guard, Lock, futex};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// No command.
const EMPTY: u32 = 0;
/// A command is pending.
const PENDING: u32 = 1;
/// The command is complete.
const COMPLETED: u32 = 2;

/// How often a sender checks that its command is complete, beside being woken.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Polls after which a sender checks that the receiver still exists.
const CHECK_INTERVAL: u32 = 40;

/// A mailbox for one command at a time.
pub struct Mailbox<C> {
    sender: Lock<()>,
    /// [`EMPTY`], [`PENDING`] or [`COMPLETED`].
    state: AtomicU32,
    command: Lock<Option<C>>,
    result: AtomicU32,
}

impl<C> Default for Mailbox<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> Mailbox<C> {
    /// An empty mailbox.
    pub const fn new() -> Self {
        Self {
            sender: Lock::new(()),
            state: AtomicU32::new(EMPTY),
            command: Lock::new(None),
            result: AtomicU32::new(0),
        }
    }

    /// Excludes other senders.
    pub fn lock(&self) -> Guard<'_, ()> {
        self.sender.lock()
    }

    /// Passes a command to the receiver, which `wake` wakes, and waits for its result. Meanwhile calls `check` every two
    /// seconds, which may end a process whose receiver has died.
    pub fn send(
        &self,
        _sender: &Guard<'_, ()>,
        command: C,
        wake: impl FnOnce(),
        check: impl Fn(),
    ) -> u32 {
        *self.command.lock() = Some(command);
        self.state.store(PENDING, Ordering::Release);
        wake();
        let mut polls: u32 = 0;
        while self.state.load(Ordering::Acquire) == PENDING {
            futex::wait(&self.state, PENDING, Some(POLL_INTERVAL));
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(CHECK_INTERVAL) {
                check();
            }
        }
        self.state.store(EMPTY, Ordering::Relaxed);
        self.result.load(Ordering::Acquire)
    }

    /// Wakes the receiver that is in [`Mailbox::wait`].
    pub fn wake(&self) {
        futex::wake_all(&self.state);
    }

    /// Waits until a command is pending.
    pub fn wait(&self) {
        loop {
            match self.state.load(Ordering::Acquire) {
                PENDING => return,
                state => futex::wait(&self.state, state, None),
            }
        }
    }

    /// Runs the command that is pending, if any.
    pub fn handle(&self, run: impl FnOnce(C) -> u32) {
        if self.state.load(Ordering::Acquire) != PENDING {
            return;
        }
        let command = self.command.lock().take();
        let result = command.map_or(0, run);
        self.result.store(result, Ordering::Release);
        self.state.store(COMPLETED, Ordering::Release);
        futex::wake_all(&self.state);
    }

    /// Empties the mailbox in the child of a fork: a thread that only the parent has may have sent a command.
    pub fn reset_after_fork(&self) {
        self.state.store(EMPTY, Ordering::Release);
        // SAFETY: the child has no other thread yet; the command is either complete or absent.
        unsafe {
            self.command.reset();
            self.sender.reset();
        }
        *self.command.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_mailbox_is_free() {
        let mailbox = Mailbox::<u32>::new();
        std::mem::forget(mailbox.lock());
        mailbox.state.store(PENDING, Ordering::Release);
        mailbox.reset_after_fork();
        mailbox.handle(|_| panic!("no command is pending"));
        drop(mailbox.lock());
    }

    #[test]
    fn a_sender_calls_its_check_while_no_receiver_handles_the_command() {
        let mailbox = Mailbox::<u32>::new();
        let check = || mailbox.handle(|command| command + 1);
        assert_eq!(mailbox.send(&mailbox.lock(), 1, || (), check), 2);
    }

    #[test]
    fn each_sender_has_the_result_of_its_command() {
        let mailbox = Mailbox::new();
        std::thread::scope(|scope| {
            let senders = (0..4u32).map(|sender| {
                let mailbox = &mailbox;
                scope.spawn(move || {
                    for n in 0..1000 {
                        let command = n * 4 + sender;
                        let result =
                            mailbox.send(&mailbox.lock(), command, || mailbox.wake(), || ());
                        assert_eq!(result, command + 1);
                    }
                })
            });
            let senders: Vec<_> = senders.collect();
            for _ in 0..4000 {
                mailbox.wait();
                mailbox.handle(|command| command + 1);
            }
            senders.into_iter().for_each(|it| it.join().unwrap());
        });
    }
}
