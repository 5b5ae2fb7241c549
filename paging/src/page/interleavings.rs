//! Every interleaving of a program, an evictor and a discarder on one page, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test --release -p selfpage
//! --lib page::interleavings`. The model is of the memory that the words speak of: what is
//! mapped in the program, what is in the staging slot, what the store holds. Loom's cells
//! complain when two threads touch one of them without the words ordering it.

use super::{PageState, PageWord, RangeGate, Released, State};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::collections::BTreeMap;
use store::PageHandle;

/// A frame and what is in it.
type Page = (u32, u32);

/// What the kernel and the store hold. Each step on it is one system call, hence atomic.
#[derive(Default)]
struct ModelMemory {
    /// What the program sees: frame and value.
    mapped: Option<Page>,
    /// The staging slot.
    slot: Option<Page>,
    /// The store, and the last handle it gave.
    stored: BTreeMap<u32, u32>,
    last: u32,
    free: Vec<u32>,
}

struct ModelDomain {
    word: PageWord,
    gate: RangeGate,
    memory: Mutex<ModelMemory>,
}

impl ModelDomain {
    fn new(frames: u32) -> Arc<Self> {
        let memory = ModelMemory {
            free: (0..frames).collect(),
            ..ModelMemory::default()
        };
        Arc::new(Self {
            word: PageWord::default(),
            gate: RangeGate::default(),
            memory: Mutex::new(memory),
        })
    }

    /// The program stores to the page, faulting until it is mapped.
    fn store(&self, value: u32) {
        loop {
            if let Some((_, there)) = &mut self.memory.lock().unwrap().mapped {
                *there = value;
                return;
            }
            self.fault();
        }
    }

    /// The program loads from the page.
    fn load(&self) -> u32 {
        loop {
            if let Some((_, value)) = self.memory.lock().unwrap().mapped {
                return value;
            }
            self.fault();
        }
    }

    fn fault(&self) {
        let seen = self.word.load();
        match seen.state() {
            State::Filling => {
                self.word.wait_settled();
            }
            State::Empty | State::Staged | State::Stored if self.word.begin_fill(seen) => {
                self.fill(seen);
            }
            // Changed meanwhile, or resident: the access is repeated.
            _ => thread::yield_now(),
        }
    }

    fn fill(&self, seen: PageState) {
        let (frame, value) = {
            let mut memory = self.memory.lock().unwrap();
            let Some(frame) = memory.free.pop() else {
                drop(memory);
                self.word.abort_fill(seen);
                thread::yield_now();
                return;
            };
            let value = match seen.state() {
                State::Staged => memory.slot.expect("a staged page is in its slot").1,
                State::Stored => memory.stored[&seen.handle().expect("a copy").get()],
                _ => 0,
            };
            (frame, value)
        };
        self.gate.enter();
        {
            let mut memory = self.memory.lock().unwrap();
            assert_eq!(memory.mapped, None, "mapped over a mapped page");
            memory.mapped = Some((frame, value));
        }
        self.word.finish_fill(frame);
        self.gate.leave();
    }

    /// Stages the page, writes it out, and discards the slot. Whether it took it.
    fn evict(&self) -> bool {
        self.gate.close();
        let frame = {
            let mut memory = self.memory.lock().unwrap();
            let ours = self.word.load().state() == State::Resident;
            if ours {
                assert_eq!(memory.slot, None);
                memory.slot = memory.mapped.take();
            }
            ours.then(|| self.word.stage().expect("resident, and the gate is closed"))
        };
        self.gate.open();
        let Some(frame) = frame else { return false };
        self.write_out(frame);
        let mut memory = self.memory.lock().unwrap();
        let (gone, _) = memory
            .slot
            .take()
            .expect("only the evictor empties its slot");
        assert_eq!(gone, frame);
        assert_ne!(
            memory.mapped.map(|(mapped, _)| mapped),
            Some(gone),
            "free and mapped"
        );
        memory.free.push(gone);
        true
    }

    /// Gives the staged page a place in the store, or sees it taken back. A fault that
    /// copies from the slot must be over before the slot goes, and if it was given up, the
    /// page is still here to be written.
    fn write_out(&self, frame: u32) {
        let value = self.memory.lock().unwrap().slot.expect("staged").1;
        loop {
            let seen = self.word.load();
            if seen.frame() != frame {
                return;
            }
            if seen.state() == State::Filling {
                self.word.wait_settled();
            } else if seen
                .handle()
                .is_some_and(|copy| self.stored(copy) == Some(value))
            {
                self.word.clean_drop(frame);
            } else {
                let copy = self.keep(value);
                match self.word.write_done(frame, copy) {
                    Some(Some(stale)) => self.forget(stale),
                    Some(None) => (),
                    None => self.forget(copy),
                }
            }
        }
    }

    fn stored(&self, copy: PageHandle) -> Option<u32> {
        self.memory.lock().unwrap().stored.get(&copy.get()).copied()
    }

    fn keep(&self, value: u32) -> PageHandle {
        let mut memory = self.memory.lock().unwrap();
        memory.last += 1;
        let copy = memory.last;
        memory.stored.insert(copy, value);
        PageHandle::new(copy).expect("small")
    }

    fn forget(&self, handle: PageHandle) {
        let gone = self.memory.lock().unwrap().stored.remove(&handle.get());
        assert!(gone.is_some(), "a copy is forgotten once");
    }

    /// The program gives the page up.
    fn discard(&self) {
        loop {
            self.gate.close();
            let done = {
                let mut memory = self.memory.lock().unwrap();
                let filling = self.word.load().state() == State::Filling;
                let gone = if filling { None } else { memory.mapped.take() };
                self.word.discard().map(|Released { frame, handle, .. }| {
                    assert_eq!(gone.map(|(frame, _)| frame), frame);
                    memory.free.extend(frame);
                    if let Some(handle) = handle {
                        assert!(memory.stored.remove(&handle.get()).is_some());
                    }
                })
            };
            self.gate.open();
            if done.is_ok() {
                return;
            }
            self.word.wait_settled();
        }
    }

    /// No thread is at work: every frame is free or mapped, and no copy is lost.
    fn check(&self, frames: u32) {
        let memory = self.memory.lock().unwrap();
        let seen = self.word.load();
        assert_ne!(seen.state(), State::Filling);
        assert_eq!(
            memory.mapped.map(|(frame, _)| frame),
            Some(seen.frame()).filter(|_| seen.state() == State::Resident)
        );
        assert_eq!(
            memory.free.len() + memory.mapped.iter().count(),
            frames as usize
        );
        let copies: Vec<u32> = memory.stored.keys().copied().collect();
        assert_eq!(
            copies,
            seen.handle()
                .map(PageHandle::get)
                .into_iter()
                .collect::<Vec<_>>()
        );
    }
}

pub(in crate::page) fn explore(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(body);
}

#[test]
fn no_store_is_lost_between_a_program_and_an_evictor() {
    explore(|| {
        let domain = ModelDomain::new(2);
        domain.store(1);
        let evictor = {
            let domain = domain.clone();
            thread::spawn(move || domain.evict())
        };
        domain.store(2);
        assert_eq!(domain.load(), 2);
        domain.store(3);
        evictor.join().unwrap();
        assert_eq!(domain.load(), 3);
        domain.check(2);
    });
}

#[test]
fn a_page_written_again_after_its_write_out_is_not_dropped_for_the_old_copy() {
    explore(|| {
        let domain = ModelDomain::new(2);
        domain.store(1);
        assert!(domain.evict());
        let evictor = {
            let domain = domain.clone();
            thread::spawn(move || domain.evict())
        };
        domain.store(2);
        evictor.join().unwrap();
        domain.evict();
        assert_eq!(domain.load(), 2);
        domain.check(2);
    });
}

#[test]
fn a_fault_given_up_for_want_of_a_frame_leaves_the_page_to_be_written() {
    explore(|| {
        let domain = ModelDomain::new(1);
        domain.store(1);
        let evictor = {
            let domain = domain.clone();
            thread::spawn(move || domain.evict())
        };
        domain.store(2);
        evictor.join().unwrap();
        assert_eq!(domain.load(), 2);
        domain.check(1);
    });
}

#[test]
fn two_threads_that_fault_on_one_page_fill_it_once_and_both_go_on() {
    explore(|| {
        let domain = ModelDomain::new(1);
        let other = {
            let domain = domain.clone();
            thread::spawn(move || domain.load())
        };
        assert_eq!(domain.load(), 0);
        other.join().unwrap();
        domain.check(1);
    });
}

#[test]
fn a_discarded_page_holds_nothing_whatever_the_evictor_was_at() {
    explore(|| {
        let domain = ModelDomain::new(2);
        domain.store(1);
        let evictor = {
            let domain = domain.clone();
            thread::spawn(move || domain.evict())
        };
        domain.discard();
        evictor.join().unwrap();
        assert_eq!(domain.load(), 0, "what was discarded does not come back");
        domain.check(2);
    });
}

#[test]
fn a_fault_a_discard_and_an_eviction_at_once_leave_the_books_right() {
    explore(|| {
        let domain = ModelDomain::new(2);
        domain.store(1);
        let threads = [ModelDomain::discard, |domain: &ModelDomain| {
            domain.evict();
        }]
        .map(|act| {
            let domain = domain.clone();
            thread::spawn(move || act(&domain))
        });
        assert!(matches!(domain.load(), 0 | 1));
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        domain.check(2);
    });
}

#[test]
fn every_waiter_wakes_when_a_fill_ends() {
    explore(|| {
        let word = Arc::new(PageWord::default());
        let seen = word.load();
        assert!(word.begin_fill(seen));
        let waiters = [(), ()].map(|()| {
            let word = word.clone();
            thread::spawn(move || word.wait_settled())
        });
        word.finish_fill(0);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap().state(), State::Resident);
        }
    });
}
