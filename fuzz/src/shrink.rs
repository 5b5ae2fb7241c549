//! Shrinks a program that fails to the operations that matter: delta debugging over the
//! tree of operations, then over their arguments.

use crate::program::{Operation, Program};
use std::time::Instant;

/// The smallest program found until `until` for which `fails` holds. `program` does.
pub fn shrink(
    program: &Program,
    until: Instant,
    mut fails: impl FnMut(&Program) -> bool,
) -> Program {
    let mut best = program.clone();
    let mut chunk = best.len().div_ceil(2);
    loop {
        let mut start = 0;
        let mut removed = false;
        while start < best.len() {
            if Instant::now() > until {
                return best;
            }
            let mut candidate = best.clone();
            let mut at = 0;
            remove(&mut candidate.operations, &mut at, start, start + chunk);
            if candidate.len() < best.len() && fails(&candidate) {
                best = candidate;
                removed = true;
            } else {
                start += chunk;
            }
        }
        if chunk == 1 && !removed {
            break;
        }
        chunk = chunk.div_ceil(2).max(1);
        if chunk == 1 && !removed && start == 0 {
            break;
        }
    }
    smaller_arguments(best, until, fails)
}

/// Removes operations `from` up to `to`, in the order of the text; a block goes with its
/// operation, and what lies in a block alone goes alone.
fn remove(operations: &mut Vec<Operation>, at: &mut usize, from: usize, to: usize) {
    operations.retain_mut(|operation| {
        let here = *at;
        *at += 1;
        if let Some(block) = &mut operation.block {
            remove(block, at, from, to);
        }
        !(from..to).contains(&here)
    });
}

/// Tries smaller numbers for each argument.
fn smaller_arguments(
    mut best: Program,
    until: Instant,
    mut fails: impl FnMut(&Program) -> bool,
) -> Program {
    for n in 0..best.len() {
        let count = nth(&mut best.operations, n).map_or(0, |o| o.arguments.len());
        for argument in 0..count {
            loop {
                let now = nth(&mut best.operations, n).map_or(0, |o| o.arguments[argument]);
                let smaller = [0, 1, now / 2, now - 1]
                    .into_iter()
                    .filter(|v| (0..now).contains(v));
                let mut better = None;
                for value in smaller {
                    if Instant::now() > until {
                        return best;
                    }
                    let mut candidate = best.clone();
                    if let Some(operation) = nth(&mut candidate.operations, n) {
                        operation.arguments[argument] = value;
                    }
                    if fails(&candidate) {
                        better = Some(candidate);
                        break;
                    }
                }
                match better {
                    Some(candidate) => best = candidate,
                    None => break,
                }
            }
        }
    }
    best
}

/// The `n`th operation in the order of the text.
fn nth(operations: &mut [Operation], n: usize) -> Option<&mut Operation> {
    fn walk<'a>(operations: &'a mut [Operation], left: &mut usize) -> Option<&'a mut Operation> {
        for operation in operations {
            if *left == 0 {
                return Some(operation);
            }
            *left -= 1;
            if let Some(block) = &mut operation.block
                && let Some(found) = walk(block, left)
            {
                return Some(found);
            }
        }
        None
    }
    let mut left = n;
    walk(operations, &mut left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn until() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn what_does_not_matter_goes_and_what_does_stays() {
        let program = crate::generate::program(5);
        let mut marked = program.clone();
        marked
            .operations
            .insert(3, Operation::plain("poke", &[5, 40, 1, 1, 77]));
        let fails = |p: &Program| p.to_string().contains(" 77\n");
        let small = shrink(&marked, until(), fails);
        assert_eq!(
            small.operations,
            [Operation::plain("poke", &[0, 0, 0, 0, 77])]
        );
    }

    #[test]
    fn an_operation_in_a_block_stays_in_it() {
        let text = "# frames 4M store ram:256M\nsum_all\nfork_child 0\nsum_all\nchurn 9\nend\n";
        let program = Program::parse(text).expect("a program");
        let fails = |p: &Program| {
            let block = p.operations.first().and_then(|o| o.block.as_ref());
            block.is_some_and(|block| block.iter().any(|o| o.name == "churn"))
                || p.operations.len() > 1 && p.to_string().contains("churn")
        };
        let small = shrink(&program, until(), fails);
        assert_eq!(
            small.to_string(),
            "# frames 4M store ram:256M\nfork_child 0\nchurn 0\nend\n"
        );
    }
}
