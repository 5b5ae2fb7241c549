//! How long the disk's thread keeps a real-time priority: pure, time in, decisions out.
//!
//! A thread with such a priority runs before the work of all others, for as long as clients have requests
//! for it. The kernel stops all real-time threads of a processor for 50 ms once they have had it for 0.95 of a
//! second, those that wait for a page among them: reads of a victim beside a neighbour with slack time
//! took up to 80 ms. So the thread has the priority for a part of each window, and is an ordinary
//! one for the rest. Figure 7 of the Nemesis paper has 0.93 to 0.96 of a quiet machine's bytes so beside eight
//! threads that compute; 0.81 to 0.83 where the thread slept instead of polling, to keep its priority for longer
//! (`selfpage bench qos --only figure7 --busy --seconds 15`).
//!
//! Threads that wait for a page have the same priority. What one client has this thread do keeps no
//! thread of another from its processor for longer than a turn.

use crate::time::{Nanos, Time};

/// Short beside a client's period: where it was a tenth of a second, bytes were 7 to 10 % off 1:2:4 in that
/// figure, in 10 ms 1 %.
const WINDOW: Nanos = Nanos::micros(10_000);

/// The part of it. The rest is for the threads that wait for pages, which have priorities, too.
const LONGEST: Nanos = Nanos::micros(7_000);

/// How long the thread runs before those of the same priority.
const TURN: Nanos = Nanos::micros(50);

/// The priority that the thread is to have, and its use in the current window.
#[derive(Debug, Default)]
pub(super) struct PriorityWindow {
    priority: Option<i32>,
    /// The priority that the thread has now.
    held: Option<i32>,
    began: Time,
    ran: Nanos,
    /// Begin of the current turn at its processor.
    turn: Time,
    /// Time of the last iteration; none after a sleep.
    seen: Option<Time>,
}

impl PriorityWindow {
    /// The thread is to have this priority from its next iteration on, or none.
    pub fn set(&mut self, priority: Option<i32>) {
        self.priority = priority;
    }

    /// Counts the time since the last iteration. Returns the priority to take, or none to give up, where
    /// that changes.
    pub fn on_iteration(&mut self, now: Time) -> Option<Option<i32>> {
        if let Some(seen) = self.seen.replace(now) {
            self.ran += now - seen;
        }
        if now - self.began >= WINDOW {
            (self.began, self.ran) = (now, Nanos::ZERO);
        }
        let next = self.priority.filter(|_| self.ran < LONGEST);
        let before = std::mem::replace(&mut self.held, next);
        (next != before).then_some(next)
    }

    /// Returns true if the thread must yield to those of its priority.
    pub fn is_turn_over(&mut self, now: Time) -> bool {
        let is_over = self.is_held() && now - self.turn > TURN;
        if is_over {
            self.turn = now;
        }
        is_over
    }

    /// Returns true if the thread has the priority now.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The thread sleeps: the time until its next iteration does not count.
    pub fn on_sleep(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time(0) + Nanos::micros(us)
    }

    #[test]
    fn a_busy_thread_has_the_priority_for_a_part_of_each_window() {
        let mut window = PriorityWindow::default();
        assert_eq!(window.on_iteration(at(0)), None);
        window.set(Some(7));
        let changes: Vec<_> = (0..30_000)
            .step_by(100)
            .filter_map(|us| Some((us, window.on_iteration(at(us))?)))
            .collect();
        let expected = [0, 7_000, 10_000, 17_000, 20_000, 27_000];
        assert_eq!(
            changes.iter().map(|(us, _)| *us).collect::<Vec<_>>(),
            expected
        );
        assert!(changes.iter().step_by(2).all(|(_, to)| *to == Some(7)));
        assert!(
            changes
                .iter()
                .skip(1)
                .step_by(2)
                .all(|(_, to)| to.is_none())
        );
    }

    #[test]
    fn a_thread_that_sleeps_most_of_the_time_keeps_it() {
        let mut window = PriorityWindow::default();
        window.set(Some(7));
        assert_eq!(window.on_iteration(at(0)), Some(Some(7)));
        for us in (0..1_000_000).step_by(1000) {
            assert_eq!(window.on_iteration(at(us)), None);
            assert_eq!(window.on_iteration(at(us + 550)), None);
            window.on_sleep();
        }
    }

    #[test]
    fn its_turns_are_short() {
        let mut window = PriorityWindow::default();
        window.set(Some(7));
        assert!(!window.is_turn_over(at(500)), "an ordinary thread");
        window.on_iteration(at(1000));
        let turns = (1000..2000)
            .filter(|us| window.is_turn_over(at(*us)))
            .count();
        assert!((19..=20).contains(&turns), "{turns}");
    }
}
