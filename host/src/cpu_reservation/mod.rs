//! Reserved processor time of a program: the reserves of real-time Mach, which RAPHA (Ko and Yoo,
//! section 4.1) builds on, by the mechanisms that Linux has.
//!
//! | mechanism | what is promised | to which threads | needs |
//! |---|---|---|---|
//! | [`deadline`] | the runtime in every period, whatever else runs | the program's first thread | CAP_SYS_NICE, no pinning |
//! | [`realtime`] | to run before all ordinary work, no longer than the runtime in every period on each processor | the whole tree | real-time control groups (v1) |
//! | [`weight`] | the most of the processors against ordinary work, no more than the runtime in every period | the whole tree | a cpu control group, v1 or v2 |
//!
//! The first available mechanism is taken, or the one that is requested. A quota alone would be a
//! ceiling and no reservation, so it is used only beside a weight.
//!
//! Handler threads are pinned, so they cannot be SCHED_DEADLINE. Those of
//! a SCHED_DEADLINE program are SCHED_FIFO at the lowest priority (`preload`), which is above all
//! ordinary work and below every reservation: each thread has at most one fault at a
//! time, so the program's own time bounds theirs. The handler threads of real-time and
//! weighted trees are in the program's group and of its class, and so within its reservation.
//!
//! Rule: every group that is made here is removed when the tree ends, by whichever of `run`'s processes
//! is left; the next run removes those that no such process could.

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

    /// The mechanism's name in options.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Deadline => "deadline",
            Mechanism::Realtime => "realtime",
            Mechanism::Weight => "weight",
        }
    }
}

/// A reservation as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuReservation {
    /// The processor time.
    pub reservation: Reservation,
    /// The mechanism; the first available one where `None`.
    pub by: Option<Mechanism>,
}

/// Why a text is not a valid reservation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuReservationError {
    /// Not of a reservation's form.
    #[error(
        "`{0}` is not a reservation of processor time: RUNTIME/PERIOD[,by=deadline|realtime|weight], each a whole number and a unit (us, ms, s), as in 10ms/40ms"
    )]
    Form(String),
    /// Of the right form, with invalid times.
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

/// Why a mechanism is not available.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {errno}; {mend}")]
pub struct MechanismUnavailable {
    /// What failed.
    pub what: String,
    /// The kernel's error.
    pub errno: Errno,
    /// The remedy.
    pub mend: &'static str,
}

/// No mechanism is available.
#[derive(Debug, thiserror::Error)]
#[error("--cpu {requested}: no processor time can be reserved here. {}", list(.unavailable))]
pub struct ReservationError {
    requested: CpuReservation,
    unavailable: Vec<(Mechanism, MechanismUnavailable)>,
}

fn list(unavailable: &[(Mechanism, MechanismUnavailable)]) -> String {
    let line = |(by, why): &(Mechanism, MechanismUnavailable)| format!("{}: {why}", by.name());
    unavailable.iter().map(line).collect::<Vec<_>>().join(". ")
}

/// A reservation that this process holds for a program that will start.
pub struct ReservationGuard {
    by: Mechanism,
    terms: CpuReservation,
    group: Option<Group>,
    unavailable: Vec<(Mechanism, MechanismUnavailable)>,
}

impl ReservationGuard {
    /// Takes the first available mechanism. `owner` is the process that stands for the
    /// tree: control groups are named for it.
    ///
    /// # Errors
    /// [`ReservationError`] has for each mechanism the reason why it is not available.
    pub fn take(terms: CpuReservation, owner: u32) -> Result<Self, ReservationError> {
        group::remove_stale();
        let mut unavailable = Vec::new();
        let candidates = Mechanism::ALL
            .into_iter()
            .filter(|by| terms.by.is_none_or(|only| only == *by));
        for by in candidates {
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
                        unavailable,
                    });
                }
                Err(why) => unavailable.push((by, why)),
            }
        }
        Err(ReservationError {
            requested: terms,
            unavailable,
        })
    }

    /// The mechanism of the reservation.
    pub fn by(&self) -> Mechanism {
        self.by
    }

    /// Notes for the user: what is reserved, and which mechanisms were not available.
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
                "for all of its threads and processes, against work of ordinary weight; other programs have no quota, and \
                 only a daemon (--system) bounds the sum of such reservations, so many busy programs, or others \
                 with a weight, take from it"
            }
        };
        let mut notes = vec![format!(
            "{terms} of processor time by {by}, {what}; beyond it the program waits for its next period"
        )];
        let note =
            |(by, why): &(Mechanism, MechanismUnavailable)| format!("not by {}: {why}", by.name());
        notes.extend(self.unavailable.iter().map(note));
        notes
    }

    /// Gives the calling process, and the processes that it starts, the reservation. In the child
    /// of a fork: system calls only.
    ///
    /// # Errors
    /// The kernel's error.
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

/// Why each mechanism is not available for a small reservation, if so; the reservation is given back at once.
pub fn survey() -> Vec<(Mechanism, Option<MechanismUnavailable>)> {
    let small = Reservation::new(Duration::from_millis(1), Duration::from_millis(100));
    let Ok(reservation) = small else {
        return Vec::new();
    };
    let try_mechanism = |by| {
        let terms = CpuReservation {
            reservation,
            by: Some(by),
        };
        let held = ReservationGuard::take(terms, std::process::id());
        let why = held
            .err()
            .and_then(|error| error.unavailable.into_iter().next());
        (by, why.map(|(_, why)| why))
    };
    Mechanism::ALL.map(try_mechanism).into()
}

/// Removes the groups that were made for a tree that has ended.
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
    fn invalid_reservations_are_refused_with_the_reason() {
        let error = |text: &str| text.parse::<CpuReservation>().unwrap_err().to_string();
        assert!(error("10ms").contains("RUNTIME/PERIOD"));
        assert!(error("10/40").contains("as in 10ms/40ms"));
        assert!(error("10ms/0ms").contains("invalid period: zero"));
        assert!(error("50ms/40ms").contains("50ms is longer than its period of 40ms"));
        assert!(error("1ms/10ms,by=magic").contains("by=deadline|realtime|weight"));
        assert!(error("1ms/10ms,deadline").contains("by=deadline"));
    }

    /// Runs `check` in a child process that has entered a reservation; returns its result as an exit status.
    fn check_inside(held: &ReservationGuard, check: fn() -> bool) -> i32 {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = match held.enter() {
                Err(errno) => errno.raw_os_error(),
                Ok(()) if check() => 0,
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
        // SAFETY: a query of the calling thread's class.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn a_process_that_enters_has_the_mechanisms_class_and_no_group_is_left() {
        let checks: [(Mechanism, fn() -> bool); 3] = [
            (Mechanism::Deadline, || policy() == libc::SCHED_DEADLINE),
            (Mechanism::Realtime, || policy() == libc::SCHED_RR),
            (Mechanism::Weight, || policy() == libc::SCHED_OTHER),
        ];
        let owner = std::process::id();
        for (by, check) in checks {
            let terms = CpuReservation {
                by: Some(by),
                ..("2ms/20ms".parse().unwrap())
            };
            match ReservationGuard::take(terms, owner) {
                Err(why) => eprintln!("SKIPPED: {why}"),
                Ok(held) => {
                    assert_eq!(held.by(), by);
                    assert_eq!(check_inside(&held, check), 0, "{by:?}");
                    assert!(held.notes()[0].contains("2ms/20ms"));
                }
            }
            release(owner);
            assert!(group::of(owner).is_empty(), "{by:?}");
        }
    }
}
