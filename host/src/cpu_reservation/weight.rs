//! The weight of a control group: the most that ordinary scheduling can promise.
//!
//! The group has the greatest weight there is, so that it runs before work of ordinary weight
//! whenever it can (256 to 1 with control groups v1, 100 to 1 with v2, against each busy
//! thread or group beside it), and a quota of the runtime in every period, so that it takes no
//! more than it reserved: the rest belongs to the faults of other programs (equation (2)).

use super::MechanismUnavailable;
use super::group::{Controller, Group};
use rate::Reservation;
use rustix::io::Errno;
use std::time::Duration;

/// The greatest weights: `MAX_SHARES`, `CGROUP_WEIGHT_MAX` of the kernel.
const MAX_SHARES: &str = "262144";
const MAX_WEIGHT: &str = "10000";

/// The kernel's bounds: a quota of at least a millisecond, a period of at most a second.
const MIN_QUOTA: Duration = Duration::from_millis(1);
const MAX_PERIOD: Duration = Duration::from_secs(1);

/// A quota and period of the same share, within the kernel's bounds.
fn quota(reservation: &Reservation) -> (Duration, Duration) {
    let (runtime, period) = (reservation.runtime(), reservation.period());
    let share = runtime.as_secs_f64() / period.as_secs_f64();
    if period > MAX_PERIOD {
        return (MAX_PERIOD.mul_f64(share).max(MIN_QUOTA), MAX_PERIOD);
    }
    if runtime < MIN_QUOTA {
        let longer = MIN_QUOTA.div_f64(share).min(MAX_PERIOD);
        return (longer.mul_f64(share).max(MIN_QUOTA), longer);
    }
    (runtime, period)
}

/// Makes a group with the weight and the quota.
pub(super) fn prepare(
    reservation: &Reservation,
    owner: u32,
) -> Result<Group, MechanismUnavailable> {
    let lack = |what: &str, errno| MechanismUnavailable {
        what: format!("a weight is not available ({what})"),
        errno,
        mend: "it needs root, or a cpu control group that systemd has delegated to this user (Delegate=yes)",
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
            set("cpu.shares", MAX_SHARES)?;
            set("cpu.cfs_period_us", &period.to_string())?;
            set("cpu.cfs_quota_us", &runtime.to_string())?;
        }
        false => {
            set("cpu.weight", MAX_WEIGHT)?;
            set("cpu.max", &format!("{runtime} {period}"))?;
        }
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_keep_the_share_within_the_kernels_bounds() {
        for (runtime, period) in [
            (10_000, 40_000),
            (100, 1_000),
            (2_000_000, 4_000_000),
            (100, 4_000_000),
        ] {
            let micros = Duration::from_micros;
            let reservation = Reservation::new(micros(runtime), micros(period)).unwrap();
            let (quota, period_of_quota) = quota(&reservation);
            assert!(
                quota >= MIN_QUOTA && period_of_quota <= MAX_PERIOD,
                "{quota:?} in {period_of_quota:?}"
            );
            let (share, requested) = (
                quota.as_secs_f64() / period_of_quota.as_secs_f64(),
                runtime as f64 / period as f64,
            );
            // The least quota in the longest period is the least share.
            assert!((share - requested).abs() < 1e-3, "{share} for {requested}");
        }
    }
}
