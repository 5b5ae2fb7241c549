//! Who may ask for what.
//!
//! The kernel says who is at the other end of a connection (SO_PEERCRED: user, group,
//! process); the first rule that fits bounds what the process may have. Nobody's word is
//! taken for who he is.

use super::config::Size;
use super::peer::Peer;
use crate::terms::{FrameTerms, Terms};
use serde::Deserialize;
use std::path::PathBuf;
use store::Bytes;

/// Who, and the most that one of them may have at a time.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// A user.
    pub uid: Option<u32>,
    /// A group.
    pub gid: Option<u32>,
    /// The file that the asking process runs.
    pub executable: Option<PathBuf>,
    /// Most frames.
    pub frames: Option<Size>,
    /// Most of a disk's time, from 0 to 1.
    pub disk: Option<f64>,
    /// Largest swap file.
    pub swap: Option<Size>,
    /// Its part in page faults against others': 1 if not said.
    pub fault_weight: Option<u32>,
    /// Whether contracts of others may be shown and set.
    pub admin: bool,
}

/// A process that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The file it runs, where the kernel shows it.
    pub executable: Option<PathBuf>,
}

impl Asker {
    /// Who is at the other end of a connection.
    pub(super) fn of(peer: &Peer) -> Self {
        let link = format!("/proc/{}/exe", peer.pid.as_raw_nonzero());
        Self {
            uid: peer.uid,
            gid: peer.gid,
            executable: std::fs::read_link(link).ok(),
        }
    }
}

impl Rule {
    fn fits(&self, asker: &Asker) -> bool {
        let is = |asked: Option<u32>, there: u32| asked.is_none_or(|asked| asked == there);
        let runs = |path: &PathBuf| asker.executable.as_ref() == Some(path);
        is(self.uid, asker.uid)
            && is(self.gid, asker.gid)
            && self.executable.as_ref().is_none_or(runs)
    }

    /// What is wrong with the rule, if anything.
    pub fn nonsense(&self) -> Option<String> {
        if self.uid.is_none() && self.gid.is_none() && self.executable.is_none() {
            return Some("it names nobody: give it uid, gid or executable".into());
        }
        if self.fault_weight == Some(0) {
            return Some("fault_weight is 0: nobody could go on; the least is 1".into());
        }
        let share = self.disk.filter(|share| !(0.0..=1.0).contains(share))?;
        Some(format!("disk is {share}: a share is between 0.0 and 1.0"))
    }

    fn refusal(&self, terms: &Terms) -> Option<String> {
        let FrameTerms { x, .. } = terms.frames;
        let asked = u64::from(x) * wired::PAGE as u64;
        if let Some(Size(most)) = self.frames.filter(|most| asked > most.0) {
            return Some(format!(
                "{} of frames are asked for, and this user may have {}",
                Bytes(asked),
                Bytes(most)
            ));
        }
        if let Some(most) = self.disk.filter(|most| terms.disk.share() > *most) {
            return Some(format!(
                "{:.1} % of the disk's time is asked for, and this user may have {:.1} %",
                terms.disk.share() * 100.0,
                most * 100.0
            ));
        }
        let Size(most) = self.swap.filter(|most| terms.swap > most.0)?;
        Some(format!(
            "{} of swap is asked for, and this user may have {}",
            Bytes(terms.swap),
            Bytes(most)
        ))
    }
}

/// The weight of `asker` in sharing out faults: that of the first rule that fits.
pub fn fault_weight(rules: &[Rule], asker: &Asker) -> u32 {
    let rule = rules.iter().find(|rule| rule.fits(asker));
    rule.and_then(|rule| rule.fault_weight).unwrap_or(1)
}

/// Says whether `asker` may have `terms`; if not, why.
pub fn check(rules: &[Rule], own: u32, asker: &Asker, terms: &Terms) -> Result<(), String> {
    if asker.uid == 0 || asker.uid == own {
        return Ok(());
    }
    match rules.iter().find(|rule| rule.fits(asker)) {
        Some(rule) => rule.refusal(terms).map_or(Ok(()), Err),
        None => Err(format!(
            "no rule of the system's configuration lets user {} (group {}) ask: its owner adds one, as in\n\
             [[allow]]\nuid = {}\nframes = \"256M\"",
            asker.uid, asker.gid, asker.uid
        )),
    }
}

/// Whether `asker` may see and set contracts of others.
pub fn is_admin(rules: &[Rule], own: u32, asker: &Asker) -> bool {
    let rule = rules.iter().find(|rule| rule.fits(asker));
    asker.uid == 0 || asker.uid == own || rule.is_some_and(|rule| rule.admin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            frames: "64M+64M".parse().unwrap(),
            disk: "25ms/250ms".parse().unwrap(),
            swap: 1 << 30,
        }
    }

    fn asker(uid: u32) -> Asker {
        Asker {
            uid,
            gid: 7,
            executable: Some("/bin/x".into()),
        }
    }

    #[test]
    fn nobody_but_root_and_the_daemons_user_may_ask_unless_a_rule_says_so() {
        assert!(check(&[], 5, &asker(0), &terms()).is_ok());
        assert!(check(&[], 5, &asker(5), &terms()).is_ok());
        let why = check(&[], 5, &asker(6), &terms()).unwrap_err();
        assert!(
            why.contains("user 6 (group 7)") && why.contains("[[allow]]"),
            "{why}"
        );
        let by_group = Rule {
            gid: Some(7),
            ..Rule::default()
        };
        assert!(check(&[by_group], 5, &asker(6), &terms()).is_ok());
    }

    #[test]
    fn a_rule_bounds_each_resource() {
        let rule = |change: &dyn Fn(&mut Rule)| {
            let mut rule = Rule {
                uid: Some(6),
                ..Rule::default()
            };
            change(&mut rule);
            check(&[rule], 5, &asker(6), &terms())
        };
        assert!(rule(&|r| r.frames = Some(Size(128 << 20))).is_ok());
        let why = rule(&|r| r.frames = Some(Size(127 << 20))).unwrap_err();
        assert!(
            why.contains("128MiB of frames") && why.contains("127MiB"),
            "{why}"
        );
        assert!(
            rule(&|r| r.disk = Some(0.05))
                .unwrap_err()
                .contains("10.0 %")
        );
        assert!(
            rule(&|r| r.swap = Some(Size(1)))
                .unwrap_err()
                .contains("1GiB of swap")
        );
        assert!(rule(&|r| r.executable = Some("/bin/y".into())).is_err());
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let small = Rule {
            uid: Some(6),
            swap: Some(Size(1)),
            ..Rule::default()
        };
        let large = Rule {
            gid: Some(7),
            admin: true,
            ..Rule::default()
        };
        let rules = [small.clone(), large.clone()];
        assert!(check(&rules, 5, &asker(6), &terms()).is_err());
        assert!(!is_admin(&rules, 5, &asker(6)) && is_admin(&[large, small], 5, &asker(6)));
    }
}
