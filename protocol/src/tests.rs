//! Encoding and decoding of messages.

use super::*;
use proptest::prelude::*;

fn terms() -> ContractSpec {
    ContractSpec {
        frames: "64M+64M".parse().unwrap(),
        disk: "25ms/250ms".parse().unwrap(),
        swap: 1 << 30,
    }
}

#[test]
fn the_longest_messages_fit() {
    let name = "n".repeat(NAME);
    let listed = TenantInfo {
        tenant: u32::MAX,
        name,
        pid: u32::MAX,
        uid: u32::MAX,
        terms: terms(),
        later: Some((terms().frames, Duration::MAX)),
        n: u32::MAX,
        used: u32::MAX,
        revocable: u32::MAX,
        resident: u32::MAX,
        client: u32::MAX,
        ran_first: Duration::MAX,
        charged: Duration::MAX,
        lax: Duration::MAX,
        transactions: u64::MAX,
        bytes: u64::MAX,
        waited: [Duration::MAX; 3],
        took: [Duration::MAX; 3],
        faults: Some(FaultGrant {
            reservation: Some((Duration::MAX, Duration::MAX)),
            share: FaultShare {
                period: Duration::MAX,
                limit: u32::MAX,
                system: u32::MAX,
            },
            unit: Duration::MAX,
        }),
    };
    for event in [
        DaemonEvent::Tenant(Box::new(listed)),
        DaemonEvent::Refused("x".repeat(TEXT)),
        DaemonEvent::Admitted {
            tenant: u32::MAX,
            terms: terms(),
            note: "x".repeat(TEXT / 2),
        },
    ] {
        let bytes = encode(&event).unwrap();
        assert_eq!(decode::<DaemonEvent>(&bytes), Some(event));
    }
    assert!(encode(&DaemonEvent::Refused("x".repeat(MESSAGE))).is_err());
    assert_eq!(cut("aé", 2), "a");
}

proptest! {
    #[test]
    fn arbitrary_bytes_decode_to_no_message_or_to_one_that_encodes_again(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = decode::<TenantRequest>(&bytes);
        let mut ours = VERSION.to_le_bytes().to_vec();
        ours.extend(bytes);
        if let Some(request) = decode::<TenantRequest>(&ours) {
            prop_assert_eq!(decode::<TenantRequest>(&encode(&request).unwrap()), Some(request));
        }
    }
}
