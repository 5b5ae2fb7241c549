//! Whether the two halves of 8 KiB that left together come back together: a database's pages are of 8 KiB, and most
//! other programs' accesses say nothing about the page beside them.
//!
//! Rule: pure. One in a few is a trial, whose second half is read ahead only. Whether a fault takes it tells what to do with
//! the next ones.

/// How the second half comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// With the first, into memory.
    Together,
    /// Into a buffer.
    Trial,
    /// By a fault of its own.
    Alone,
}

/// The score at which halves come together. A trial that a fault takes adds [`TAKEN`], another one takes 1 away: a
/// half too many costs about half of what a fault does.
const TRUSTED: u8 = 4;
const TAKEN: u8 = 2;
const MOST: u8 = 2 * TRUSTED;

/// One in so many is a trial.
const TRIAL: u32 = 16;

/// What the trials of one object have shown.
#[derive(Debug)]
pub struct Pairs {
    score: u8,
    faults: u32,
}

impl Default for Pairs {
    fn default() -> Self {
        Self {
            score: TRUSTED,
            faults: 0,
        }
    }
}

impl Pairs {
    /// What to do for a fault on one half.
    pub fn on_fault(&mut self) -> Pairing {
        self.faults = self.faults.wrapping_add(1);
        match self.score >= TRUSTED {
            _ if self.faults.is_multiple_of(TRIAL) => Pairing::Trial,
            true => Pairing::Together,
            false => Pairing::Alone,
        }
    }

    /// A trial has ended.
    pub fn on_trial(&mut self, was_taken: bool) {
        self.score = match was_taken {
            true => (self.score + TAKEN).min(MOST),
            false => self.score.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 1000 halves come together, where a trial is taken as `is_taken` says of its number.
    fn together(pairs: &mut Pairs, is_taken: impl Fn(u32) -> bool) -> usize {
        let mut trials = 0;
        let mut next = || {
            let pairing = pairs.on_fault();
            if pairing == Pairing::Trial {
                pairs.on_trial(is_taken(trials));
                trials += 1;
            }
            pairing
        };
        (0..1000).filter(|_| next() == Pairing::Together).count()
    }

    #[test]
    fn halves_come_together_as_long_as_trials_are_taken() {
        let mut pairs = Pairs::default();
        assert_eq!(together(&mut pairs, |_| true), 938);
        assert!(together(&mut pairs, |_| false) < 100);
        assert_eq!(together(&mut pairs, |_| false), 0);
        assert!(together(&mut pairs, |_| true) > 800);
    }

    #[test]
    fn one_taken_trial_in_two_is_enough() {
        let mut pairs = Pairs::default();
        assert_eq!(together(&mut pairs, |trial| trial % 2 == 0), 938);
    }
}
