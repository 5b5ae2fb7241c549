//! The steps of a sequence.

use crate::{OBJECTS, PAGES};
use proptest::prelude::*;
use space::Rights;

/// An operation on some pages, or an access to them.
#[derive(Clone, Debug)]
pub enum Step {
    Reserve,
    Commit {
        zero: bool,
        auto: bool,
        shareable: bool,
    },
    Protect(Rights),
    Decommit,
    Deallocate,
    Map {
        object: usize,
        page: usize,
        copy_on_write: bool,
        write: bool,
    },
    Write(u8),
    WriteObject {
        object: usize,
        page: usize,
        value: u8,
    },
}

/// Any of them.
pub fn step() -> impl Strategy<Value = Step> {
    let rights = prop_oneof![
        Just(Rights::READ),
        Just(Rights::READ | Rights::WRITE),
        Just(Rights::NONE)
    ];
    prop_oneof![
        2 => Just(Step::Reserve),
        4 => (any::<bool>(), any::<bool>(), proptest::bool::weighted(0.2))
            .prop_map(|(zero, auto, shareable)| Step::Commit { zero, auto, shareable }),
        2 => rights.prop_map(Step::Protect),
        2 => Just(Step::Decommit),
        1 => Just(Step::Deallocate),
        3 => (0..OBJECTS, 0..PAGES, any::<bool>(), any::<bool>())
            .prop_map(|(object, page, copy_on_write, write)| Step::Map { object, page, copy_on_write, write }),
        6 => any::<u8>().prop_map(Step::Write),
        3 => (0..OBJECTS, 0..PAGES, any::<u8>())
            .prop_map(|(object, page, value)| Step::WriteObject { object, page, value }),
    ]
}
