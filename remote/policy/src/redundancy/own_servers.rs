//! A server of its own for each part of a stripe, of those with a copy of it.

use super::stripe::{MAX_PARTS, ServerSet, StripeView, bit};

/// A server for each part, no two the same, of those with a copy of it; as many parts as possible get one.
pub(super) fn assign(view: StripeView<'_>, among: ServerSet) -> [Option<usize>; MAX_PARTS] {
    let mut options = [0; MAX_PARTS];
    for (option, copies) in options.iter_mut().zip(view.parts) {
        *option = copies.current & among;
    }
    let mut servers = [None; MAX_PARTS];
    for part in 0..view.parts.len() {
        seat(part, &options, &mut 0, &mut servers);
    }
    servers
}

/// Gives a part a server, if need be by moving other parts to others of theirs. `tried` has servers that do not help.
fn seat(
    part: usize,
    options: &[ServerSet; MAX_PARTS],
    tried: &mut ServerSet,
    servers: &mut [Option<usize>; MAX_PARTS],
) -> bool {
    while options[part] & !*tried != 0 {
        let server = (options[part] & !*tried).trailing_zeros() as usize;
        *tried |= bit(server);
        let holder = servers.iter().position(|held| *held == Some(server));
        if holder.is_none_or(|holder| seat(holder, options, tried, servers)) {
            servers[part] = Some(server);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::PartCopies;
    use super::*;

    #[test]
    fn parts_give_way_to_those_with_fewer_servers() {
        let servers_of = |current: [ServerSet; 4]| {
            let copies = |current| PartCopies {
                current,
                ..PartCopies::default()
            };
            let parts = current.map(copies);
            let view = StripeView {
                parts: &parts,
                connected: 0,
                replicas: 2,
                is_full: false,
            };
            let servers = assign(view, ServerSet::MAX);
            [0, 1, 2, 3].map(|part| servers[part])
        };
        let servers = servers_of([0b0011, 0b0001, 0b0110, 0b0100]);
        assert_eq!(servers, [Some(1), Some(0), Some(2), None]);
        let servers = servers_of([0b0011, 0b0001, 0b0110, 0b1100]);
        assert_eq!(servers, [Some(1), Some(0), Some(2), Some(3)]);
    }
}
