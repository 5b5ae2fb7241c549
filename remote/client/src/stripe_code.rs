//! The code of a stripe: each parity is a sum of its members' pages over GF(256), with other factors.
//!
//! The first parity is the exclusive or of the members. The second one's factors are powers of two, as of RAID-6, so any
//! four of six parts give the others. Rule: the code works byte by byte, so parts are written and made again page by page.

use reed_solomon_erasure::galois_8::{div, mul, mul_slice_xor};
use remote_policy::redundancy::StripeShape;

/// Members of a stripe.
pub const MEMBERS: usize = StripeShape::FOUR_TWO.data as usize;

/// Most parities of a stripe.
pub const PARITIES: usize = StripeShape::FOUR_TWO.parity as usize;

/// The factors of the members whose sum a part is.
fn row(part: usize) -> [u8; MEMBERS] {
    match part.checked_sub(MEMBERS) {
        None => std::array::from_fn(|member| (member == part).into()),
        Some(0) => [1; MEMBERS],
        Some(_) => std::array::from_fn(|member| 1 << member),
    }
}

/// The factors of the sources whose sum a part is. `None` if these are not as many as members, each once.
pub fn factors(part: usize, sources: &[usize]) -> Option<[u8; MEMBERS]> {
    let sources: &[usize; MEMBERS] = sources.try_into().ok()?;
    // A row for each member: the sources' factors of it, and the part's.
    let mut rows: [[u8; MEMBERS + 1]; MEMBERS] = std::array::from_fn(|member| {
        std::array::from_fn(|at| match sources.get(at) {
            Some(source) => row(*source)[member],
            None => row(part)[member],
        })
    });
    for at in 0..MEMBERS {
        let pivot = (at..MEMBERS).find(|row| rows[*row][at] != 0)?;
        rows.swap(at, pivot);
        let first = rows[at][at];
        rows[at].iter_mut().for_each(|one| *one = div(*one, first));
        let reduced = rows[at];
        for (_, other) in rows.iter_mut().enumerate().filter(|(row, _)| *row != at) {
            let factor = other[at];
            let pairs = other.iter_mut().zip(reduced);
            pairs.for_each(|(one, from)| *one ^= mul(factor, from));
        }
    }
    Some(rows.map(|row| row[MEMBERS]))
}

/// Adds the product of pages to others.
pub fn add_product(factor: u8, from: &[u8], to: &mut [u8]) {
    match factor {
        0 => {}
        1 => to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from),
        _ => mul_slice_xor(factor, from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: usize = MEMBERS + PARITIES;
    const LEN: usize = 64;

    fn sum(factors: [u8; MEMBERS], of: [&[u8; LEN]; MEMBERS]) -> [u8; LEN] {
        let mut sum = [0; LEN];
        let terms = factors.into_iter().zip(of);
        terms.for_each(|(factor, from)| add_product(factor, from, &mut sum));
        sum
    }

    #[test]
    fn any_four_parts_give_each_of_the_others() {
        let mut random = fastrand::Rng::with_seed(1);
        let members: [[u8; LEN]; MEMBERS] =
            std::array::from_fn(|_| std::array::from_fn(|_| random.u8(..)));
        let of_members = members.each_ref();
        let parts: [[u8; LEN]; PARTS] = std::array::from_fn(|part| sum(row(part), of_members));
        let mut checked = 0;
        for set in (0u32..1 << PARTS).filter(|set| set.count_ones() as usize == MEMBERS) {
            let sources: Vec<_> = (0..PARTS).filter(|part| set >> part & 1 == 1).collect();
            let there = [0, 1, 2, 3].map(|at| &parts[sources[at]]);
            for (part, expected) in parts.iter().enumerate() {
                let factors = factors(part, &sources).unwrap();
                assert_eq!(&sum(factors, there), expected, "{part} of {sources:?}");
                checked += 1;
            }
        }
        assert_eq!(checked, 15 * PARTS);
    }

    #[test]
    fn the_first_parity_and_what_it_gives_is_the_exclusive_or() {
        assert_eq!(factors(MEMBERS, &[0, 1, 2, 3]), Some([1; MEMBERS]));
        assert_eq!(factors(2, &[0, 1, 3, MEMBERS]), Some([1; MEMBERS]));
    }

    #[test]
    fn too_few_or_repeated_parts_give_nothing() {
        assert_eq!(factors(0, &[1, 2, 3]), None);
        assert_eq!(factors(0, &[1, 1, 2, 3]), None);
    }
}
