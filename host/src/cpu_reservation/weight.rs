//! The weight of a control group: the most that ordinary scheduling can promise.
//!
//! The group has the greatest weight there is, so that it runs before work of ordinary weight
//! whenever it can (256 to 1 with control groups v1, 100 to 1 with v2, against each busy
//! thread or group beside it), and a quota of the runtime in every period, so that it takes no
//! more than it reserved: what others' faults need is not its own (equation (2)).

use super::MechanismUnavailable;
use super::group::{Controller, Group};
use rate::Reservation;
use rustix::io::Errno;
use std::time::Duration;

/// The greatest weights: `MAX_SHARES`, `CGROUP_WEIGHT_MAX` of the kernel.
const MOST_SHARES: &str = "262144";
const MOST_WEIGHT: &str = "10000";

/// What the kernel takes for a quota: at least a millisecond, in at most a second.
const LEAST_QUOTA: Duration = Duration::from_millis(1);
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

/// Quota and period of the same share that the kernel takes.
fn quota(reservation: &Reservation) -> (Duration, Duration) {
    let (runtime, period) = (reservation.runtime(), reservation.period());
    let share = runtime.as_secs_f64() / period.as_secs_f64();
    if period > LONGEST_PERIOD {
        return (
            LONGEST_PERIOD.mul_f64(share).max(LEAST_QUOTA),
            LONGEST_PERIOD,
        );
    }
    if runtime < LEAST_QUOTA {
        let longer = LEAST_QUOTA.div_f64(share).min(LONGEST_PERIOD);
        return (longer.mul_f64(share).max(LEAST_QUOTA), longer);
    }
    (runtime, period)
}

/// A group with the weight and the quota.
pub(super) fn prepare(
    reservation: &Reservation,
    owner: u32,
) -> Result<Group, MechanismUnavailable> {
    let lack = |what: &str, errno| MechanismUnavailable {
        what: format!("a weight cannot be had ({what})"),
        errno,
        mend: "it needs a cpu control group that this user may make groups in: root, or one delegated by systemd (Delegate=yes)",
    };
    let controller = Controller::find().map_err(|errno| lack("no cpu controller", errno))?;
    let group = Group::make(&controller, owner).map_err(|errno| lack("no group", errno))?;
    let set = |file: &str, value: &str| {
        group
            .write(file, value)
            .map_err(|errno: Errno| lack(&format!("{file} = {value}"), errno))
    };
    let (runtime, period) = quota(reservation);
    let (runtime, period) = (runtime.as_micros(), period.as_micros());
    match controller.is_v1() {
        true => {
            set("cpu.shares", MOST_SHARES)?;
            set("cpu.cfs_period_us", &period.to_string())?;
            set("cpu.cfs_quota_us", &runtime.to_string())?;
        }
        false => {
            set("cpu.weight", MOST_WEIGHT)?;
            set("cpu.max", &format!("{runtime} {period}"))?;
        }
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_keep_the_share_within_what_the_kernel_takes() {
        for (runtime, period) in [
            (10_000, 40_000),
            (100, 1_000),
            (2_000_000, 4_000_000),
            (100, 4_000_000),
        ] {
            let micros = Duration::from_micros;
            let asked = Reservation::new(micros(runtime), micros(period)).unwrap();
            let (quota, of) = quota(&asked);
            assert!(
                quota >= LEAST_QUOTA && of <= LONGEST_PERIOD,
                "{quota:?} in {of:?}"
            );
            let (share, wanted) = (
                quota.as_secs_f64() / of.as_secs_f64(),
                runtime as f64 / period as f64,
            );
            // The least quota in the longest period is the least share.
            assert!((share - wanted).abs() < 1e-3, "{share} for {wanted}");
        }
    }
}
