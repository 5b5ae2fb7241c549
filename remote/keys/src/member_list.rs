//! The keys of a cluster.
//!
//! A set that hosts change apart and merge: members are added, and removed for good. A key that was
//! removed does not come back, whatever a host that has not learned of it sends; its host makes
//! another key. So two hosts that have received the same lists in any order have the same one, as long as these
//! are within their bounds. What another host sends is bounded, and what an operator removes here is not.

use crate::fingerprint::Fingerprint;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most members.
pub const MAX_MEMBERS: usize = 4096;
/// Most keys removed, up to which a list takes one from another host that is no member here; a member's is taken up
/// to twice as many, so that invented keys do not keep a member from being removed.
const MAX_REMOVED: usize = 4096;
/// Longest name or address.
const MAX_TEXT: usize = 64;

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Counts the changes of name and address, which the host makes: the last holds.
    pub version: u64,
    /// Its name, for people.
    pub name: String,
    /// HOST:PORT of its paging server, if it has one.
    pub address: Option<String>,
}

/// The members, and the keys that were members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberList {
    members: BTreeMap<Fingerprint, Member>,
    removed: BTreeSet<Fingerprint>,
}

/// A text that names no member, or several.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguous {
    /// None.
    #[error(
        "no member is named {0}, and no member's key begins so: `selfpage cluster show` lists them"
    )]
    None(String),
    /// Several.
    #[error(
        "{count} members are named {name}: give the beginning of a key, as `selfpage cluster show` lists it"
    )]
    Several {
        /// The text.
        name: String,
        /// How many.
        count: usize,
    },
}

impl MemberList {
    /// A list of these.
    pub(crate) fn from_parts(
        members: impl IntoIterator<Item = (Fingerprint, Member)>,
        removed: BTreeSet<Fingerprint>,
    ) -> Self {
        let members = Self {
            members: members.into_iter().collect(),
            removed: BTreeSet::new(),
        };
        let mut list = Self {
            members: BTreeMap::new(),
            removed,
        };
        list.merge(&members);
        list
    }

    /// The keys that were members.
    pub(crate) fn removed(&self) -> &BTreeSet<Fingerprint> {
        &self.removed
    }

    /// Returns true if the key is a member's.
    pub fn is_member(&self, key: &Fingerprint) -> bool {
        self.members.contains_key(key)
    }

    /// Returns true if the key was a member's, and is not any more.
    pub fn is_removed(&self, key: &Fingerprint) -> bool {
        self.removed.contains(key)
    }

    /// A member.
    pub fn get(&self, key: &Fingerprint) -> Option<&Member> {
        self.members.get(key)
    }

    /// All members, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&Fingerprint, &Member)> {
        self.members.iter()
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Sets a host's name and address. A key that was removed stays so.
    pub fn set(&mut self, key: Fingerprint, name: &str, address: Option<&str>) {
        let known = self.members.get(&key);
        let (name, address) = (short(name), address.map(short));
        let is_known = known.is_some_and(|it| it.name == name && it.address == address);
        if is_known || self.removed.contains(&key) {
            return;
        }
        // A list of another host may have the last number there is.
        let version = known.map_or(0, |it| it.version).saturating_add(1);
        self.insert(
            key,
            Member {
                version,
                name,
                address,
            },
        );
    }

    fn insert(&mut self, key: Fingerprint, member: Member) {
        if self.members.len() < MAX_MEMBERS || self.members.contains_key(&key) {
            self.members.insert(key, member);
        }
    }

    /// Removes a member for good.
    pub fn remove(&mut self, key: Fingerprint) {
        self.removed.insert(key);
        self.members.remove(&key);
    }

    /// Returns true if a key that another host has removed is removed here.
    fn takes_removal(&self, key: &Fingerprint) -> bool {
        let most = match self.members.contains_key(key) {
            true => 2 * MAX_REMOVED,
            false => MAX_REMOVED,
        };
        self.removed.len() < most
    }

    /// A member of another's list that this one has removed.
    pub(crate) fn removed_member(&self, of: &Self) -> Option<Fingerprint> {
        self.removed.iter().find(|key| of.is_member(key)).copied()
    }

    /// Adds what another host knows. Returns true if something is new here.
    pub fn merge(&mut self, other: &Self) -> bool {
        let before = self.clone();
        for key in &other.removed {
            if self.takes_removal(key) {
                self.remove(*key);
            }
        }
        for (key, theirs) in &other.members {
            if self.removed.contains(key) {
                continue;
            }
            let theirs = Member {
                version: theirs.version,
                name: short(&theirs.name),
                address: theirs.address.as_deref().map(short),
            };
            // Where two have one version, any order will do that all hosts have.
            if self.members.get(key).is_none_or(|ours| *ours < theirs) {
                self.insert(*key, theirs);
            }
        }
        *self != before
    }

    /// The member that a person means by its name, or by the beginning of its key.
    ///
    /// # Errors
    /// [`Ambiguous`].
    pub fn find(&self, text: &str) -> Result<Fingerprint, Ambiguous> {
        let named = |(key, member): &(&Fingerprint, &Member)| {
            member.name == text || (text.len() >= 4 && key.to_string().starts_with(text))
        };
        let found: Vec<_> = self.iter().filter(named).map(|(key, _)| *key).collect();
        match found[..] {
            [one] => Ok(one),
            [] => Err(Ambiguous::None(text.to_owned())),
            _ => Err(Ambiguous::Several {
                name: text.to_owned(),
                count: found.len(),
            }),
        }
    }
}

/// A text of another host, as a terminal and a list may have it.
fn short(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u8) -> Fingerprint {
        Fingerprint::of(&[number])
    }

    fn any_list() -> impl Strategy<Value = MemberList> {
        let member = (0..6u8, 1..4u64, "[ab]", prop::option::of("[cd]:1"));
        let removed = prop::collection::btree_set(0..6u8, 0..3);
        (prop::collection::vec(member, 0..8), removed).prop_map(|(members, removed)| {
            let mut list = MemberList::default();
            for (number, version, name, address) in members {
                let member = Member {
                    version,
                    name,
                    address,
                };
                list.members.insert(key(number), member);
            }
            removed
                .into_iter()
                .for_each(|number| list.remove(key(number)));
            list
        })
    }

    fn merged(one: &MemberList, other: &MemberList) -> MemberList {
        let mut list = one.clone();
        list.merge(other);
        list
    }

    proptest! {
        #[test]
        fn lists_merge_to_the_same_in_any_order(a in any_list(), b in any_list(), c in any_list()) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a.clone());
        }

        #[test]
        fn a_removed_key_is_no_member_whatever_another_host_sends(a in any_list(), b in any_list()) {
            let removed = a.removed.clone();
            let list = merged(&a, &b);
            prop_assert!(removed.iter().all(|key| !list.is_member(key) && list.is_removed(key)));
        }
    }

    #[test]
    fn the_last_name_and_address_of_a_host_hold() {
        let mut list = MemberList::default();
        list.set(key(1), "near", None);
        let old = list.clone();
        list.set(key(1), "near", Some("10.0.0.1:4763"));
        assert!(!list.clone().merge(&old));
        assert_eq!(merged(&old, &list), list);
        list.remove(key(1));
        list.set(key(1), "near", None);
        assert!(!list.is_member(&key(1)));
    }

    #[test]
    fn keys_that_a_host_invents_keep_no_member_from_being_removed() {
        let mut ours = MemberList::default();
        ours.set(key(1), "expelled", None);
        let mut invented = MemberList::default();
        for number in 0..2 * MAX_REMOVED as u32 {
            invented.remove(Fingerprint::of(&number.to_le_bytes()));
        }
        let mut theirs = ours.clone();
        ours.merge(&invented);
        theirs.merge(&invented);
        assert_eq!(ours.removed.len(), MAX_REMOVED);
        ours.remove(key(1));
        theirs.merge(&ours);
        assert!(ours.is_removed(&key(1)) && theirs.is_removed(&key(1)));
        assert_eq!(ours.removed_member(&theirs), None);
        // The file has all of them.
        let members = ours.iter().map(|(key, member)| (*key, member.clone()));
        assert_eq!(MemberList::from_parts(members, ours.removed.clone()), ours);
    }

    #[test]
    fn a_member_is_found_by_its_name_or_its_key() {
        let mut list = MemberList::default();
        list.set(key(1), "near", None);
        list.set(key(2), "far", None);
        list.set(key(3), "far", None);
        assert_eq!(list.find("near"), Ok(key(1)));
        assert_eq!(list.find(&key(2).short()), Ok(key(2)));
        assert!(matches!(
            list.find("far"),
            Err(Ambiguous::Several { count: 2, .. })
        ));
        assert!(matches!(list.find("else"), Err(Ambiguous::None(_))));
    }

    #[test]
    fn texts_of_other_hosts_are_bounded_and_printable() {
        let mut list = MemberList::default();
        list.set(key(1), &format!("\u{1b}[31m{}", "x".repeat(1000)), None);
        let name = &list.get(&key(1)).unwrap().name;
        assert!(name.len() <= MAX_TEXT && name.starts_with("[31m"), "{name}");
    }
}
