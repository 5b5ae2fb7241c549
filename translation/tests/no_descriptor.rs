//! A process that may open no more descriptors. In a process of its own, which has none left.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use translation::{Capabilities, EntryKind, Feature, OpenError, Userfault};

#[test]
fn a_lack_of_descriptors_is_named_as_such() {
    let capabilities = Capabilities::probe().capabilities;
    if !capabilities.has(Feature::KernelFaults) {
        return eprintln!("SKIPPED: faults of the kernel's cannot be resolved here");
    }
    let before = getrlimit(Resource::Nofile);
    let current = Some(0);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
    let refused = Userfault::open(EntryKind::Thread, &capabilities);
    setrlimit(Resource::Nofile, before).unwrap();
    match refused {
        Err(why @ OpenError::NoDescriptor(_)) => assert!(why.to_string().contains("ulimit -n")),
        other => panic!("{other:?}"),
    }
}
