//! Real-time priority with a budget: SCHED_RR in a control group that may use the runtime in
//! every period of each processor, after which the kernel stops the group until the next period.
//!
//! Only kernels with real-time group scheduling have such budgets, in control groups v1. The
//! machine's own limit on real-time tasks is for all of them together and is no budget of one
//! program; without a budget a program in a loop would stop the machine's other work.

use super::MechanismUnavailable;
use super::group::{Controller, Group};
use rate::Reservation;
use rustix::io::Errno;

/// The lowest real-time priority: above all ordinary work, below other real-time work.
const PRIORITY: i32 = 1;

/// Makes a group with the budget.
pub(super) fn prepare(
    reservation: &Reservation,
    owner: u32,
) -> Result<Group, MechanismUnavailable> {
    let lack = |what: &str, errno| MechanismUnavailable {
        what: format!("a real-time budget is not available ({what})"),
        errno,
        mend: match errno {
            // The kernel's check of this budget beside those of other groups and the machine's limit.
            Errno::INVAL => {
                "the present reservations leave less of what kernel.sched_rt_runtime_us allows: ask for less, or end a \
                 program with a reservation"
            }
            _ => "it needs root, control groups v1 and a kernel with CONFIG_RT_GROUP_SCHED",
        },
    };
    let controller = Controller::find().map_err(|errno| lack("no cpu controller", errno))?;
    if !controller.is_v1() {
        return Err(lack("control groups v2 have none", Errno::NOTSUP));
    }
    let group = Group::make(&controller, owner).map_err(|errno| lack("no group", errno))?;
    let micros = |time: std::time::Duration| time.as_micros().to_string();
    let set = |file: &str, value: String| {
        group
            .write(file, &value)
            .map_err(|errno| lack(&format!("{file} = {value}"), errno))
    };
    set("cpu.rt_period_us", micros(reservation.period()))?;
    set("cpu.rt_runtime_us", micros(reservation.runtime()))?;
    Ok(group)
}

/// Makes the calling thread, and what it starts, real-time.
pub(super) fn enter() -> Result<(), Errno> {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: a structure that the kernel reads.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(crate::last_errno()),
    }
}
