//! A domain's contract, and the reasons to refuse one.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: a domain is admitted with
//! {g, x}, its guaranteed and its maximum frames. Rule: the sum of all g is at most the number of
//! frames, so that every guarantee can be met at once.

use wired::Bytes;

/// {g, x}: the frames a domain is guaranteed, and the most it may ever own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Guaranteed frames: a request below this succeeds, by revocation if necessary.
    pub g: u32,
    /// Most frames: a request at this fails. Those between `g` and `x` are optimistic.
    pub x: u32,
}

/// As many are guaranteed as it may ever own.
impl From<u32> for Contract {
    fn from(frames: u32) -> Self {
        Self {
            g: frames,
            x: frames,
        }
    }
}

/// The advice to request what is left; empty where no frame is.
pub(crate) fn advise_request(left: u32) -> String {
    match left {
        0 => String::new(),
        _ => format!(
            "request at most {left} frames ({}), ",
            Bytes::of_pages(left)
        ),
    }
}

/// Why a domain is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The guarantees would exceed the ledger's frames.
    #[error(
        "cannot guarantee {asked} frames ({}): {admitted} of {total} frames ({}) are already guaranteed to \
         {domains} domains (each process of a program is one); {}give more frames (`--frames`), or let one of them end first",
        Bytes::of_pages(*asked), Bytes::of_pages(*total), advise_request(total - admitted)
    )]
    Guarantee {
        /// g of the contract refused.
        asked: u32,
        /// Sum of g admitted so far.
        admitted: u32,
        /// Frames in all.
        total: u32,
        /// Domains admitted so far.
        domains: u32,
    },
    /// One process more than the contract has minimum frames for.
    #[error(
        "{processes} processes x {minimum} frames minimum = {} frames, but the contract is {total} \
         frames ({}); give at least {}, or run at most {} processes at once",
        u64::from(*processes) * u64::from(*minimum),
        Bytes::of_pages(*total),
        Bytes::of_pages(processes.saturating_mul(*minimum)),
        total / (*minimum).max(1)
    )]
    Tree {
        /// Number of processes with the new one.
        processes: u32,
        /// Frames each must have to make progress.
        minimum: u32,
        /// Frames of the contract.
        total: u32,
    },
    /// Every slot is taken.
    #[error(
        "all {slots} domain slots are taken; let a domain end first, or make the ledger with more slots"
    )]
    Slots {
        /// Slots in the ledger.
        slots: u32,
    },
    /// A contract with g above x, or without frames.
    #[error("invalid contract: {g} guaranteed and at most {x} frames; expected 0 < x and g <= x")]
    Contract {
        /// Guaranteed frames asked for.
        g: u32,
        /// Most frames asked for.
        x: u32,
    },
}

/// The contract of each process in a tree that shares `total` frames: `minimum` frames
/// guaranteed, `total` at most. Refused when the tree has more processes than minimum sets of
/// frames.
pub fn tree(processes: u32, minimum: u32, total: u32) -> Result<Contract, AdmissionError> {
    if u64::from(processes) * u64::from(minimum) > u64::from(total) {
        return Err(AdmissionError::Tree {
            processes,
            minimum,
            total,
        });
    }
    Ok(Contract {
        g: minimum,
        x: total,
    })
}

/// The share of each of `domains` in `total` frames when all want as many as possible.
pub fn fair_share(domains: u32, total: u32) -> u32 {
    (total / domains.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_tree_names_processes_times_minimum_and_the_contract() {
        let text = tree(17, 16, 256).unwrap_err().to_string();
        for part in [
            "17 processes x 16 frames",
            "272",
            "256 frames (1MiB)",
            "at least 1088KiB",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(tree(16, 16, 256).is_ok());
    }

    #[test]
    fn a_fair_share_is_at_least_one_frame() {
        assert_eq!(fair_share(3, 100), 33);
        assert_eq!(fair_share(0, 100), 100);
        assert_eq!(fair_share(100, 4), 1);
    }
}
