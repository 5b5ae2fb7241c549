//! The arms: the resources of the player and the neighbour. The options of `selfpage run`
//! for each are in one place, here.

use crate::prelude::*;

/// MiB of the player's contract under `selfpage run`: its decoder fits, so that its faults
/// are first touches.
pub const PLAYER_FRAMES: u64 = 192;

/// The disk contracts, alike in all arms of ours: the player's, which does not page, and the
/// neighbour's, which has the slack too.
pub const PLAYER_DISK: &str = "25ms/250ms";
/// As above.
pub const NEIGHBOUR_DISK: &str = "100ms/250ms,extra";

/// Times the processor time that a frame takes, decoded alone, that the player reserves: a
/// frame is also written to the pipe, and other programs leave caches cold.
const MARGIN: f64 = 1.6;

/// The most of a frame's time that is reserved.
const MAX_SHARE: f64 = 0.9;

/// The programs of a round and their contracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Arm {
    /// The player and the load, no neighbour.
    Alone,
    /// Stock Linux: the neighbour in as much memory as it wants.
    Stock,
    /// Kernel swap on a file, the neighbour in a cgroup of its contract's size.
    Swap,
    /// Both under contracts of one daemon; no rate is limited and no processor
    /// reserved.
    Ours,
    /// As ours, and the neighbour's fault rate is limited, the player's processor reserved.
    OursLimited,
    /// As ours-limited, but the neighbour's fault rate is not limited.
    OursReserved,
    /// As ours-limited, but the player has no reservation.
    OursPaced,
}

/// The options of `selfpage run` for rates and reservations.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Of the neighbour: the value of --fault-rate.
    pub fault_rate: String,
    /// Of the player: the value of --cpu.
    pub cpu: String,
}

impl Arm {
    /// The arms that are compared by default.
    pub const USUAL: [Self; 5] = [
        Self::Alone,
        Self::Stock,
        Self::Swap,
        Self::Ours,
        Self::OursLimited,
    ];

    /// Returns true if the programs run under `selfpage run`.
    pub fn ours(self) -> bool {
        !matches!(self, Self::Alone | Self::Stock | Self::Swap)
    }

    /// Returns true if there is a neighbour.
    pub fn launches(self) -> bool {
        self != Self::Alone
    }

    /// The options of `run` in front of the neighbour.
    pub fn of_neighbour(self, terms: &Terms) -> Vec<String> {
        match self {
            Self::OursLimited | Self::OursPaced => {
                vec!["--fault-rate".into(), terms.fault_rate.clone()]
            }
            _ => Vec::new(),
        }
    }

    /// The options of `run` in front of the player.
    pub fn of_player(self, terms: &Terms) -> Vec<String> {
        match self {
            Self::OursLimited | Self::OursReserved => vec!["--cpu".into(), terms.cpu.clone()],
            _ => Vec::new(),
        }
    }
}

/// The reservation of a player whose frames take so long to decode and come so often.
pub fn reservation(cost: Duration, period: Duration) -> String {
    let runtime = cost.mul_f64(MARGIN).min(period.mul_f64(MAX_SHARE));
    format!("{}us/{}us", runtime.as_micros(), period.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            fault_rate: "auto".into(),
            cpu: "1ms/2ms".into(),
        }
    }

    #[test]
    fn only_our_arms_have_the_options_of_their_names() {
        let options = |arm: Arm| [arm.of_neighbour(&terms()), arm.of_player(&terms())].concat();
        assert_eq!(
            options(Arm::OursLimited).join(" "),
            "--fault-rate auto --cpu 1ms/2ms"
        );
        assert_eq!(options(Arm::OursPaced).join(" "), "--fault-rate auto");
        assert_eq!(options(Arm::OursReserved).join(" "), "--cpu 1ms/2ms");
        for arm in [Arm::Alone, Arm::Stock, Arm::Swap, Arm::Ours] {
            assert!(options(arm).is_empty(), "{arm:?}");
        }
    }

    #[test]
    fn a_reservation_is_more_than_a_frame_takes_and_less_than_its_time() {
        let ms = Duration::from_millis;
        assert_eq!(reservation(ms(10), ms(33)), "16000us/33000us");
        assert_eq!(reservation(ms(40), ms(33)), "29700us/33000us");
    }
}
