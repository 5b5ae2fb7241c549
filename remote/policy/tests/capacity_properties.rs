//! A server's promises under any order of operations.

mod common;

use common::{SECOND, config, epoch, incarnation, object, request};
use proptest::prelude::*;
use selfpage_remote_policy::capacity::ServerCapacity;
use selfpage_remote_policy::identity::RequestId;
use selfpage_remote_policy::permit::Permit;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    Claim {
        number: u64,
        host: u64,
    },
    Allocate {
        number: u64,
        host: u64,
        client: u64,
        request: u64,
        pages: u64,
    },
    Reallocate {
        permit: usize,
        request: u64,
        pages: u64,
    },
    Contact {
        client: u64,
        boot: u128,
    },
    Release {
        permit: usize,
    },
    Create {
        permit: usize,
        number: u64,
    },
    Write {
        client: u64,
        number: u64,
        pages: u64,
    },
    Terminate {
        client: u64,
        number: u64,
    },
    Usage {
        local: u64,
    },
    Timer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u64..4, 0u64..3).prop_map(|(number, host)| Step::Claim { number, host }),
        (0u64..4, 0u64..3, 0u64..3, 0u64..6, 1u64..500).prop_map(
            |(number, host, client, request, pages)| {
                Step::Allocate {
                    number,
                    host,
                    client,
                    request,
                    pages,
                }
            }
        ),
        (0usize..9, 6u64..20, 0u64..700).prop_map(|(permit, request, pages)| Step::Reallocate {
            permit,
            request,
            pages
        }),
        (0u64..3, 0u128..3).prop_map(|(client, boot)| Step::Contact { client, boot }),
        (0usize..9).prop_map(|permit| Step::Release { permit }),
        (0usize..9, 0u64..4).prop_map(|(permit, number)| Step::Create { permit, number }),
        (0u64..3, 0u64..4, 1u64..300).prop_map(|(client, number, pages)| Step::Write {
            client,
            number,
            pages
        }),
        (0u64..3, 0u64..4).prop_map(|(client, number)| Step::Terminate { client, number }),
        (0u64..1100).prop_map(|local| Step::Usage { local }),
        Just(Step::Timer),
    ];
    prop::collection::vec(step, 1..120)
}

/// Carries a step out. Returns true if it made or enlarged a promise.
fn carry_out(
    server: &mut ServerCapacity,
    step: Step,
    permits: &mut Vec<Permit>,
    now: Duration,
) -> bool {
    let nth = |permits: &[Permit], index: usize| permits.get(index % permits.len().max(1)).copied();
    match step {
        Step::Claim { number, host } => {
            let claim = epoch(number, host);
            let may = claim >= server.epoch();
            assert_eq!(server.grant_to(claim).is_ok(), may);
        }
        Step::Allocate {
            number,
            host,
            client,
            request: name,
            pages,
        } => {
            let (asked, held) = (epoch(number, host), server.epoch());
            let result = server.allocate(asked, &request(incarnation(client, 0), name, pages));
            if let Ok(permit) = result {
                assert_eq!(asked, held);
                permits.push(permit);
                return true;
            }
        }
        Step::Reallocate {
            permit,
            request,
            pages,
        } => {
            let Some(permit) = nth(permits, permit) else {
                return false;
            };
            let (client, number) = (permit.client, request);
            let id = RequestId { client, number };
            let enlarged = server.reallocate(server.epoch(), id, permit.id, pages);
            return enlarged.is_ok();
        }
        Step::Contact { client, boot } => {
            let _ = server.on_contact(incarnation(client, boot), now);
        }
        Step::Release { permit } => {
            if let Some(permit) = nth(permits, permit) {
                server.release(permit.id);
            }
        }
        Step::Create { permit, number } => {
            if let Some(permit) = nth(permits, permit) {
                let _ = server.create(permit.id, object(permit.client.host.0, number), now);
            }
        }
        Step::Write {
            client,
            number,
            pages,
        } => {
            let _ = server.write(object(client, number), pages, now);
        }
        Step::Terminate { client, number } => server.terminate(object(client, number)),
        Step::Usage { local } => drop(server.on_usage(1000, local, now)),
        Step::Timer => drop(server.on_timer(now)),
    }
    false
}

proptest! {
    /// The rule of `capacity`: whatever happens, a promise comes from pages that are neither used
    /// nor promised, and a server in need gets its pages once all deadlines are over.
    #[test]
    fn capacity_is_never_promised_twice(steps in steps()) {
        let mut server = ServerCapacity::new(config(), incarnation(1, 0), 1000);
        let mut permits = Vec::new();
        let mut now = Duration::ZERO;
        let mut local = 0;
        for step in steps {
            now += SECOND;
            if let Step::Usage { local: used } = step {
                local = used;
            }
            let (held, granted) = (server.epoch(), server.granted_pages());
            carry_out(&mut server, step, &mut permits, now);
            prop_assert!(server.epoch() >= held);
            if server.granted_pages() > granted {
                prop_assert!(local + server.granted_pages() + config().lend_above_pages <= 1000);
            }
            let report = server.report();
            let sum: u64 = report.permits.iter().map(|permit| permit.granted_pages).sum();
            prop_assert_eq!(sum, server.granted_pages());
        }
        for _ in 0..8 {
            now += SECOND;
            server.on_timer(now);
        }
        let is_served = local + server.granted_pages() + config().revoke_below_pages <= 1000;
        prop_assert!(is_served || server.granted_pages() == 0);
    }
}
