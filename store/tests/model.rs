//! Random sequences of all operations, on stores in RAM, on disk and in both.

mod common;

use common::make;
use common::model::{HOLDERS, run, step};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_holder_reads_what_it_wrote_in_ram(steps in prop::collection::vec(step(), 1..60)) {
        run(&make("ram:512K", HOLDERS), steps);
    }

    #[test]
    fn every_holder_reads_what_it_wrote_on_disk(steps in prop::collection::vec(step(), 1..60)) {
        run(&make("disk:model-swap,size=1M", HOLDERS), steps);
    }

    #[test]
    fn every_holder_reads_what_it_wrote_in_the_tier(steps in prop::collection::vec(step(), 1..60)) {
        run(&make("ram:256K+disk:model-swap,size=512K", HOLDERS), steps);
    }
}
