//! Processor time that a program really has: what RAPHA (Ko and Yoo, section 4.1) takes from
//! real-time Mach's reserves, made of what Linux has.
//!
//! | mechanism | what is promised | of whom | needs |
//! |---|---|---|---|
//! | [`deadline`] | the runtime in every period, whatever else runs | the program's first thread | CAP_SYS_NICE, no pinning |
//! | [`realtime`] | to run before all ordinary work, no longer than the runtime in every period on each processor | the whole tree | real-time control groups (v1) |
//! | [`weight`] | the most of the processors against ordinary work, no more than the runtime in every period | the whole tree | a cpu control group, v1 or v2 |
//!
//! The first that can be had is taken, or the one that is asked for. A quota alone would be a
//! ceiling and no reservation, so it is there only beside a weight.
//!
//! Handler threads are pinned, so they cannot be SCHED_DEADLINE. Those of
//! a program that is are SCHED_FIFO at the lowest priority (`preload`), which is above all
//! ordinary work and below every reservation: there is at most one fault of each thread at a
//! time, so their time is bounded by the program's own. The handler threads of real-time and
//! weighted trees are in the program's group and of its class, and so within its reservation.
//!
//! Rule: what is made here is undone when the tree ends, by whichever of `run`'s processes is
//! left; the next run undoes what none of them could.

pub mod deadline;
pub mod group;
pub mod realtime;
pub mod weight;

use group::Group;
use rate::Reservation;
use rate::units::InvalidReservation;
use rustix::io::Errno;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use wired::{Time, parse_time};

/// How processor time is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// SCHED_DEADLINE.
    Deadline,
    /// Real-time priority with a budget.
    Realtime,
    /// The weight of a control group.
    Weight,
}

impl Mechanism {
    /// All, the best first.
    pub const ALL: [Mechanism; 3] = [Mechanism::Deadline, Mechanism::Realtime, Mechanism::Weight];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Deadline => "deadline",
            Mechanism::Realtime => "realtime",
            Mechanism::Weight => "weight",
        }
    }
}

/// A reservation, as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuReservation {
    /// How much.
    pub reservation: Reservation,
    /// Mechanism what; the first that can be had where none is named.
    pub by: Option<Mechanism>,
}

/// What is wrong with what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuReservationError {
    /// Not a reservation.
    #[error(
        "`{0}` is not a reservation of processor time: RUNTIME/PERIOD[,by=deadline|realtime|weight], each a whole number and a unit (us, ms, s), as in 10ms/40ms"
    )]
    Form(String),
    /// One that cannot be.
    #[error(transparent)]
    Reservation(#[from] InvalidReservation),
}

impl FromStr for CpuReservation {
    type Err = CpuReservationError;

    fn from_str(text: &str) -> Result<Self, CpuReservationError> {
        let wrong = || CpuReservationError::Form(text.to_owned());
        let (share, by) = match text.split_once(',') {
            None => (text, None),
            Some((share, by)) => (share, Some(by.strip_prefix("by=").ok_or_else(wrong)?)),
        };
        let by = match by {
            None => None,
            Some(name) => Some(
                Mechanism::ALL
                    .into_iter()
                    .find(|by| by.name() == name)
                    .ok_or_else(wrong)?,
            ),
        };
        let (runtime, period) = share.split_once('/').ok_or_else(wrong)?;
        let time = |text| parse_time(text).map_err(|_| wrong());
        let reservation = Reservation::new(time(runtime)?, time(period)?)?;
        Ok(Self { reservation, by })
    }
}

impl fmt::Display for CpuReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reservation, by } = self;
        write!(
            f,
            "{}/{}",
            Time(reservation.runtime()),
            Time(reservation.period())
        )?;
        by.map_or(Ok(()), |by| write!(f, ",by={}", by.name()))
    }
}

/// Why a mechanism cannot be had.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {errno}; {mend}")]
pub struct MechanismUnavailable {
    /// What failed.
    pub what: String,
    /// What the kernel said.
    pub errno: Errno,
    /// What to do.
    pub mend: &'static str,
}

/// No mechanism can be had.
#[derive(Debug, thiserror::Error)]
#[error("--cpu {asked}: no processor time can be reserved here. {}", list(.lacks))]
pub struct ReservationError {
    asked: CpuReservation,
    lacks: Vec<(Mechanism, MechanismUnavailable)>,
}

fn list(lacks: &[(Mechanism, MechanismUnavailable)]) -> String {
    let line = |(by, lack): &(Mechanism, MechanismUnavailable)| format!("{}: {lack}", by.name());
    lacks.iter().map(line).collect::<Vec<_>>().join(". ")
}

/// A reservation that is held for a program that will start.
pub struct ReservationGuard {
    by: Mechanism,
    terms: CpuReservation,
    group: Option<Group>,
    lacks: Vec<(Mechanism, MechanismUnavailable)>,
}

impl ReservationGuard {
    /// Takes the first mechanism that can be had. `owner` is the process that stands for the
    /// tree: control groups are named for it.
    ///
    /// # Errors
    /// [`ReservationError`] says of each mechanism why it cannot be had.
    pub fn take(terms: CpuReservation, owner: u32) -> Result<Self, ReservationError> {
        group::remove_stale();
        let mut lacks = Vec::new();
        let wanted = Mechanism::ALL
            .into_iter()
            .filter(|by| terms.by.is_none_or(|only| only == *by));
        for by in wanted {
            let group = match by {
                Mechanism::Deadline => deadline::probe(&terms.reservation).map(|()| None),
                Mechanism::Realtime => realtime::prepare(&terms.reservation, owner).map(Some),
                Mechanism::Weight => weight::prepare(&terms.reservation, owner).map(Some),
            };
            match group {
                Ok(group) => {
                    return Ok(Self {
                        by,
                        terms,
                        group,
                        lacks,
                    });
                }
                Err(lack) => lacks.push((by, lack)),
            }
        }
        Err(ReservationError {
            asked: terms,
            lacks,
        })
    }

    /// Mechanism what it is held.
    pub fn by(&self) -> Mechanism {
        self.by
    }

    /// What is to be said of it: what is held, and what could not be had.
    pub fn notes(&self) -> Vec<String> {
        let (terms, by) = (
            CpuReservation {
                by: None,
                ..self.terms
            },
            self.by.name(),
        );
        let what = match self.by {
            Mechanism::Deadline => {
                "for the program's first thread; threads and processes that it starts run as ordinary ones"
            }
            Mechanism::Realtime => "for all of its threads and processes, on each processor",
            Mechanism::Weight => {
                "for all of its threads and processes, against work of ordinary weight; nobody else is under a quota, and \
                 only a daemon (--system) keeps the sum of what is reserved so, so many busy programs, or others \
                 with a weight, take from it"
            }
        };
        let mut notes = vec![format!(
            "{terms} of processor time by {by}, {what}; beyond it the program waits for its next period"
        )];
        let lack = |(by, lack): &(Mechanism, MechanismUnavailable)| {
            format!("not by {}: {lack}", by.name())
        };
        notes.extend(self.lacks.iter().map(lack));
        notes
    }

    /// The calling process and what it starts have the reservation from now on. In the child
    /// of a fork: system calls only.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn enter(&self) -> Result<(), Errno> {
        if let Some(group) = &self.group {
            group.enter()?;
        }
        match self.by {
            Mechanism::Deadline => deadline::enter(&self.terms.reservation),
            Mechanism::Realtime => realtime::enter(),
            Mechanism::Weight => Ok(()),
        }
    }
}

/// What each mechanism lacks for a small reservation, which is given back at once.
pub fn survey() -> Vec<(Mechanism, Option<MechanismUnavailable>)> {
    let little = Reservation::new(Duration::from_millis(1), Duration::from_millis(100));
    let Ok(reservation) = little else {
        return Vec::new();
    };
    let ask = |by| {
        let terms = CpuReservation {
            reservation,
            by: Some(by),
        };
        let held = ReservationGuard::take(terms, std::process::id());
        let lack = held.err().and_then(|none| none.lacks.into_iter().next());
        (by, lack.map(|(_, lack)| lack))
    };
    Mechanism::ALL.map(ask).into()
}

/// Removes what was made for a tree that has ended.
pub fn release(owner: u32) {
    group::remove_of(owner);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_read_as_it_is_printed() {
        for text in [
            "10ms/40ms",
            "1ms/10ms,by=deadline",
            "5ms/10ms,by=weight",
            "500us/1ms,by=realtime",
        ] {
            assert_eq!(text.parse::<CpuReservation>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_cannot_be_reserved_is_refused_with_the_reason() {
        let said = |text: &str| text.parse::<CpuReservation>().unwrap_err().to_string();
        assert!(said("10ms").contains("RUNTIME/PERIOD"));
        assert!(said("10/40").contains("as in 10ms/40ms"));
        assert!(said("10ms/0ms").contains("invalid period: zero"));
        assert!(said("50ms/40ms").contains("50ms is longer than its period of 40ms"));
        assert!(said("1ms/10ms,by=magic").contains("by=deadline|realtime|weight"));
        assert!(said("1ms/10ms,deadline").contains("by=deadline"));
    }

    /// A process of ours that has entered a reservation: how `look` found it, as a status.
    fn inside(held: &ReservationGuard, look: fn() -> bool) -> i32 {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = match held.enter() {
                Err(errno) => errno.raw_os_error(),
                Ok(()) if look() => 0,
                Ok(()) => 255,
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    fn policy() -> i32 {
        // SAFETY: asks of the calling thread.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn whoever_enters_is_scheduled_so_and_nothing_is_left() {
        let looks: [(Mechanism, fn() -> bool); 3] = [
            (Mechanism::Deadline, || policy() == libc::SCHED_DEADLINE),
            (Mechanism::Realtime, || policy() == libc::SCHED_RR),
            (Mechanism::Weight, || policy() == libc::SCHED_OTHER),
        ];
        let owner = std::process::id();
        for (by, look) in looks {
            let terms = CpuReservation {
                by: Some(by),
                ..("2ms/20ms".parse().unwrap())
            };
            match ReservationGuard::take(terms, owner) {
                Err(why) => eprintln!("SKIPPED: {why}"),
                Ok(held) => {
                    assert_eq!(held.by(), by);
                    assert_eq!(inside(&held, look), 0, "{by:?}");
                    assert!(held.notes()[0].contains("2ms/20ms"));
                }
            }
            release(owner);
            assert!(group::of(owner).is_empty(), "{by:?}");
        }
    }
}
