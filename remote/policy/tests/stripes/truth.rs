//! What can be had of the servers, whatever the client makes of it, and what they are to have.

use crate::copies::Copy;
use crate::servers::{CopyId, PAGES, Page, bit};
use crate::world::{MEMBERS, REPLICAS, World};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use selfpage_remote_policy::redundancy::ServerSet;

/// Returns true if an object could be had without some servers, whatever the client makes of it.
pub fn is_there(world: &World, object: usize, without: ServerSet) -> bool {
    if has_valid(world, object, without) {
        return true;
    }
    let Some(stripe) = world.stripe.as_ref().filter(|stripe| stripe.protects()) else {
        return false;
    };
    let parts = (0..stripe.shape().parts()).filter(|part| has_valid(world, *part, without));
    object < MEMBERS && parts.count() >= MEMBERS
}

/// Returns true if a server keeps an object as it was acknowledged, of those that the client counted on.
fn has_valid(world: &World, object: usize, without: ServerSet) -> bool {
    let of = &world.objects[object];
    let is_valid = |copy: &Copy| {
        let kept = &world.servers[copy.server].kept;
        let pages = kept.get(&(object, copy.generation));
        let is_right = |page: usize| {
            let there = pages.map_or(Page::Empty, |pages| pages[page]);
            of.lost[page] || is_right(world, object, page, there)
        };
        without & bit(copy.server) == 0 && pages.is_some() && (0..PAGES).all(is_right)
    };
    let now = of.copies.iter().filter(|copy| copy.is_current);
    let before = world.readable.get(object).into_iter().flatten();
    match world.readable.is_empty() {
        true => now.copied().collect::<Vec<_>>(),
        false => before.copied().collect(),
    }
    .iter()
    .any(is_valid)
}

fn is_right(world: &World, object: usize, page: usize, there: Page) -> bool {
    let known = world.objects[object].acknowledged[page];
    match there {
        Page::Parity { number, of } => {
            let is_same = |member: usize| world.objects[member].acknowledged[page] == of[member];
            number == known && (0..MEMBERS).all(is_same)
        }
        Page::Written(version) => version >= known,
        Page::Empty => known == 0,
    }
}

/// How many servers each member can lose, two at most; `None` where it is lost.
pub fn margins(world: &mut World) -> Vec<Option<usize>> {
    world.note_readable();
    let sets = || (0..world.servers.len()).map(bit);
    let pairs = || sets().flat_map(|one| sets().map(move |other| one | other));
    let margin = |member: usize| {
        let survives = |without: ServerSet| is_there(world, member, without);
        match () {
            () if !survives(0) => None,
            () if !sets().all(survives) => Some(0),
            () if !pairs().all(survives) => Some(1),
            () => Some(2),
        }
    };
    (0..MEMBERS).map(margin).collect()
}

/// What a read of a member is made of, where its own server does not answer, is what the member's page was when it was
/// acknowledged last, or what a later write has begun to write: no server of the sources has another page.
pub fn check_reconstruction(world: &mut World) -> Result<(), TestCaseError> {
    let connected = world.connected();
    for member in 0..MEMBERS {
        let sources = world.ask(|stripe, view| stripe.sources_at(member, view, connected));
        let Some(sources): Option<[usize; MEMBERS]> = sources.flatten() else {
            continue;
        };
        prop_assert!(!sources.contains(&member));
        for page in 0..PAGES {
            let is_lost = |part: &usize| world.objects[*part].lost[page];
            if world.objects[member].acknowledged[page] == 0 || sources.iter().any(is_lost) {
                continue;
            }
            let there: Vec<_> = sources
                .map(|part| pages_at(world, part, page, connected))
                .into();
            check_sum(world, (member, page), &sources, &there)?;
        }
    }
    Ok(())
}

/// What servers have as a page of a part, where a read of it may go.
fn pages_at(world: &World, part: usize, page: usize, among: ServerSet) -> Vec<Page> {
    let copies = world.objects[part].copies.iter();
    let copies = copies.filter(|copy| copy.is_current && among & bit(copy.server) != 0);
    let kept = |copy: &Copy| {
        world.servers[copy.server]
            .kept
            .get(&(part, copy.generation))
    };
    copies.filter_map(|copy| Some(kept(copy)?[page])).collect()
}

fn check_sum(
    world: &World,
    (member, page): (usize, usize),
    sources: &[usize; MEMBERS],
    there: &[Vec<Page>],
) -> Result<(), TestCaseError> {
    let of_member = &world.objects[member];
    let right = of_member.acknowledged[page]..=of_member.issued[page];
    let parities = there.iter().flatten().filter_map(|page| match page {
        Page::Parity { of, .. } => Some(*of),
        _ => None,
    });
    for of in parities {
        prop_assert!(
            right.contains(&of[member]),
            "{member} as {of:?}, not {right:?}"
        );
        for (source, pages) in sources
            .iter()
            .zip(there)
            .filter(|(part, _)| **part < MEMBERS)
        {
            let is_same = |there: &Page| match there {
                Page::Written(version) => *version == of[*source],
                Page::Empty => of[*source] == 0,
                Page::Parity { .. } => false,
            };
            prop_assert!(
                pages.iter().all(is_same),
                "{source} has {pages:?} beside {of:?}"
            );
        }
    }
    Ok(())
}

/// No step of the client's own makes a member easier to lose than it is to be.
pub fn check_margins(world: &mut World, before: &[Option<usize>]) -> Result<(), TestCaseError> {
    let promised = if world.is_whole() {
        world.parities()
    } else {
        1
    };
    for (member, (before, after)) in before.iter().zip(margins(world)).enumerate() {
        let is_kept = after >= (*before).min(Some(promised)) || world.is_full;
        prop_assert!(
            is_kept,
            "member {member} could lose {before:?} servers, and now {after:?}"
        );
    }
    Ok(())
}

/// Servers keep what the client counts there, and no more.
pub fn check_settled(world: &World) -> Result<(), TestCaseError> {
    prop_assert!(
        world.is_idle(),
        "a request waits: {:?}; {:?} {:?} {:?}",
        world.requests,
        world.stripe,
        world.objects,
        world.job
    );
    for (at, server) in world.servers.iter().enumerate() {
        let kept: Vec<CopyId> = server.kept.keys().copied().collect();
        let named = world.objects.iter().enumerate().flat_map(|(object, of)| {
            let there = of.copies.iter().filter(|copy| copy.server == at);
            there.map(move |copy| (object, copy.generation))
        });
        prop_assert_eq!(kept, named.collect::<Vec<_>>(), "at server {}", at);
    }
    for object in &world.objects[..MEMBERS] {
        let wanted = if world.is_whole() { 1 } else { REPLICAS };
        let is_right = object.current().count_ones() == wanted && object.filling().is_none();
        prop_assert!(is_right || !object.has_pages, "{object:?}");
    }
    Ok(())
}

pub fn check_no_parity_is_kept(world: &World) -> Result<(), TestCaseError> {
    let kept = world.servers.iter().flat_map(|server| server.kept.keys());
    let parities: Vec<_> = kept.filter(|(object, _)| *object >= MEMBERS).collect();
    prop_assert_eq!(parities, Vec::<&CopyId>::new());
    Ok(())
}

/// Has everything happen that is due, until nothing is.
pub fn settle(world: &mut World) -> Result<(), TestCaseError> {
    let mut quiet = 0;
    for _ in 0..2000 {
        let before = format!("{:?} {:?}", world.objects, world.stripe);
        world.tick();
        while !world.messages.is_empty() {
            world.deliver(0, false);
        }
        world.take_defect()?;
        let is_same = before == format!("{:?} {:?}", world.objects, world.stripe);
        quiet = if is_same { quiet + 1 } else { 0 };
        if quiet > 5 {
            return Ok(());
        }
    }
    Err(TestCaseError::fail("the client comes to no rest"))
}
