//! A linked program under a contract with the daemon.
//!
//! `cargo run --release -p tenant --example linked -- SOCKET` joins the daemon that listens
//! there, fills four times its frames with data, reads it back, gives the contract back and
//! goes on without one.

use selfpage::{DirectIo, Domain, Paged};
use std::error::Error;
use std::path::PathBuf;
use tenant::{ContractRequest, DomainResources, LinkedTenant};

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::args_os().nth(1).map(PathBuf::from);
    let socket = socket.ok_or("usage: linked SOCKET")?;
    let request = ContractRequest {
        name: "example".into(),
        frames: Some("16M".parse()?),
        disk: Some("50ms/250ms,extra".parse()?),
        swap: Some(128 << 20),
        place: None,
    };
    let (mut tenant, resources) = LinkedTenant::join(&socket, &request)?;
    println!("contract {}: {}", tenant.number(), tenant.terms());
    work(resources, 64 << 20)?;
    tenant.leave()?;
    println!("left; frames were revoked {} times", tenant.revocations());
    Ok(())
}

/// Pages under the contract. The domain and its stretch are dropped at the end, as `leave` requires.
fn work(resources: DomainResources, bytes: usize) -> Result<(), Box<dyn Error>> {
    let domain = Domain::builder()
        .frames(resources.contract)
        .ledger(resources.ledger)
        .shared_store(resources.store)
        .direct_io(DirectIo::PinnedOnly)
        .build()?;
    let stretch = domain.allocate(bytes)?;
    stretch.bind(Paged)?;
    for page in 0..bytes / PAGE {
        // SAFETY: the first word of a page of the stretch, which no other code uses.
        unsafe {
            stretch
                .as_ptr()
                .add(page * PAGE)
                .cast::<usize>()
                .write(page)
        };
    }
    for page in 0..bytes / PAGE {
        // SAFETY: as above.
        let read = unsafe { stretch.as_ptr().add(page * PAGE).cast::<usize>().read() };
        assert_eq!(read, page);
    }
    println!("{bytes} bytes in {} frames", domain.n());
    Ok(())
}
