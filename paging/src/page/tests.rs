use super::*;
use proptest::prelude::*;

fn handle(number: u32) -> PageHandle {
    PageHandle::new(number).unwrap()
}

fn resident(frame: u32) -> PageWord {
    let word = PageWord::default();
    assert!(word.begin_fill(word.load()));
    word.finish_fill(frame);
    word
}

#[test]
fn a_page_that_was_never_touched_is_empty() {
    let seen = PageWord::default().load();
    assert_eq!(
        (seen.state(), seen.frame(), seen.handle()),
        (State::Empty, PageState::NO_FRAME, None)
    );
    assert!(seen.may_stage());
}

#[test]
fn a_fill_is_claimed_once() {
    let word = PageWord::default();
    let seen = word.load();
    assert!(word.begin_fill(seen));
    assert!(!word.begin_fill(seen));
    assert!(!word.begin_fill(word.load()));
    assert_eq!(word.discard(), Err(Busy));
}

#[test]
fn an_aborted_fill_leaves_the_page_as_it_was() {
    let empty = PageWord::default();
    let staged = resident(0);
    staged.stage();
    let stored = resident(9);
    stored.stage();
    stored.write_done(9, handle(7));
    for word in [empty, staged, stored] {
        let seen = word.load();
        assert!(word.begin_fill(seen));
        assert_eq!(word.load().state(), State::Filling);
        assert_eq!(
            (word.load().frame(), word.load().handle()),
            (seen.frame(), seen.handle())
        );
        word.abort_fill(seen);
        assert_eq!(word.load(), seen);
    }
}

#[test]
fn a_write_out_fails_when_the_page_was_wanted_meanwhile() {
    let word = resident(3);
    assert_eq!(word.stage(), Some(3));
    assert!(word.begin_fill(word.load()));
    assert_eq!(word.write_done(3, handle(1)), None);
    word.finish_fill(4);
    assert_eq!(word.write_done(3, handle(1)), None);
    assert_eq!(word.stage(), Some(4));
    assert_eq!(
        word.write_done(3, handle(1)),
        None,
        "staged again, but elsewhere"
    );
    assert_eq!(word.write_done(4, handle(2)), Some(None));
    assert_eq!(word.load().handle(), Some(handle(2)));
}

#[test]
fn a_page_that_comes_back_unchanged_is_dropped_for_its_copy() {
    let word = resident(3);
    word.stage();
    assert!(!word.clean_drop(3), "there is no copy yet");
    assert_eq!(word.write_done(3, handle(5)), Some(None));
    assert!(word.begin_fill(word.load()));
    word.finish_fill(8);
    assert_eq!(word.load().handle(), Some(handle(5)), "kept, maybe stale");
    word.stage();
    assert!(word.clean_drop(8));
    assert_eq!(
        (word.load().state(), word.load().handle()),
        (State::Stored, Some(handle(5)))
    );
}

#[test]
fn a_rewritten_page_gives_up_its_stale_copy() {
    let word = resident(3);
    word.stage();
    word.write_done(3, handle(5));
    assert!(word.begin_fill(word.load()));
    word.finish_fill(8);
    word.stage();
    assert_eq!(word.write_done(8, handle(6)), Some(Some(handle(5))));
}

#[test]
fn a_nailed_page_is_not_staged_until_as_many_unnail_it() {
    let word = resident(3);
    assert!(word.nail() && word.nail());
    assert!(word.unnail());
    assert_eq!((word.stage(), word.load().may_stage()), (None, false));
    assert!(word.unnail() && !word.unnail());
    assert_eq!(word.stage(), Some(3));
    assert!(!word.nail(), "not resident");
}

#[test]
fn a_page_gets_hot_by_coming_back_from_standby_only() {
    let word = resident(1);
    for frame in 2..9 {
        word.stage();
        assert!(word.begin_fill(word.load()));
        word.finish_fill(frame);
    }
    assert_eq!(word.load().hot(), 3);
}

#[test]
fn what_a_page_held_is_handed_over_when_it_goes() {
    let word = resident(1);
    assert_eq!(
        word.discard(),
        Ok(Released {
            frame: Some(1),
            handle: None,
            nailed: false,
        })
    );
    let word = resident(2);
    word.stage();
    word.write_done(2, handle(4));
    assert_eq!(
        word.become_foreign(),
        Ok(Released {
            frame: None,
            handle: Some(handle(4)),
            nailed: false,
        })
    );
    assert!(!word.load().may_stage());
    assert!(!word.begin_fill(word.load()));
    assert!(word.discard().is_ok());
    assert_eq!(word.load().state(), State::Foreign, "until it is reclaimed");
    assert!(word.reclaim() && !word.reclaim());
    assert_eq!(word.load().state(), State::Empty);
    let word = resident(3);
    word.stage();
    word.write_done(3, handle(5));
    assert!(word.begin_fill(word.load()));
    assert_eq!(word.poison_fill(), Some(handle(5)));
    assert_eq!(word.load().state(), State::Poisoned);
}

#[test]
fn a_child_writes_its_own_frames_into_the_words() {
    let word = resident(3);
    let last = frames::Frame::MAX - 1;
    assert_eq!(word.renumber(last), Some(3));
    assert_eq!(word.load().frame(), last);
    assert_eq!(PageWord::default().renumber(1), None);
}

#[test]
fn those_who_wait_for_a_fill_see_the_page_settled() {
    let word = std::sync::Arc::new(PageWord::default());
    assert!(word.begin_fill(word.load()));
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let word = word.clone();
            std::thread::spawn(move || word.wait_settled())
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(10));
    word.finish_fill(5);
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().frame(), 5);
    }
}

#[test]
fn a_closed_gate_keeps_everyone_out_until_it_opens() {
    let gate = std::sync::Arc::new(RangeGate::default());
    let busy = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(0));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (gate, busy) = (gate.clone(), busy.clone());
            std::thread::spawn(move || {
                for _ in 0..5_000 {
                    if n == 0 {
                        gate.close();
                        assert_eq!(busy.load(Acquire), 0);
                        gate.open();
                    } else {
                        gate.enter();
                        busy.fetch_add(1, AcqRel);
                        busy.fetch_sub(1, AcqRel);
                        gate.leave();
                    }
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    gate.close();
    assert!(!gate.try_enter());
    gate.open();
    assert!(gate.try_enter());
    gate.leave();
}

proptest! {
    /// Whatever is done to a page, in whatever order: it holds a frame exactly where the
    /// table says so, and no handle is lost or handed over twice.
    #[test]
    fn frames_and_handles_are_neither_lost_nor_doubled(steps in prop::collection::vec(0u8..12, 0..200)) {
        let word = PageWord::default();
        let (mut next, mut framed, mut copy) = (0u32, None, None::<PageHandle>);
        let mut claimed = None;
        for step in steps {
            next += 1;
            let seen = word.load();
            match step {
                0 | 1 => if word.begin_fill(seen) { claimed = Some(seen) },
                2 => if let Some(before) = claimed.take() {
                    word.finish_fill(next);
                    framed = Some(next);
                    prop_assert_eq!(word.load().handle(), before.handle());
                },
                3 => if let Some(before) = claimed.take() { word.abort_fill(before); },
                4 => if claimed.take().is_some() {
                    prop_assert_eq!(word.poison_fill(), copy.take());
                    framed = None;
                },
                5 | 6 => { word.stage(); },
                7 => if let Some(old) = framed.and_then(|f| word.write_done(f, handle(next))) {
                    prop_assert_eq!(old, copy);
                    (copy, framed) = (Some(handle(next)), None);
                },
                8 => if framed.is_some_and(|f| word.clean_drop(f)) { framed = None },
                9 => if let Some(old) = framed.and_then(|f| word.drop_zero(f)) {
                    prop_assert_eq!(old, copy.take());
                    framed = None;
                },
                10 => if let Ok(released) = word.discard() {
                    prop_assert_eq!(released.handle, copy.take());
                    framed = None;
                },
                _ => if let Some(old) = word.take_handle() {
                    prop_assert_eq!(Some(old), copy.take());
                },
            }
            let now = word.load();
            prop_assert_eq!(now.handle(), copy);
            match now.state() {
                State::Resident | State::Staged => prop_assert_eq!(Some(now.frame()), framed),
                State::Filling => (),
                _ => prop_assert_eq!(now.frame(), PageState::NO_FRAME),
            }
        }
    }
}
