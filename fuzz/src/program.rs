//! A program: its contract and its operations, and their text.
//!
//! The text is what the interpreter reads: an operation a line, `name number...`; one
//! that has a child or a thread carry out a part is followed by that part and `end`.

use std::fmt::{self, Display};

/// Operations that open a block; the interpreter's `operations.h` has them as BLOCK.
pub const BLOCKS: [&str; 7] = [
    "fork_child",
    "fork_beside",
    "exec_child",
    "sharing_child",
    "in_handler",
    "at_depth",
    "thread",
];

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which, by its name in the interpreter.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<i64>,
    /// What another process or thread carries out, of an operation that opens a block.
    pub block: Option<Vec<Operation>>,
}

impl Operation {
    /// An operation without a block.
    pub fn plain(name: &str, arguments: &[i64]) -> Self {
        Self {
            name: name.into(),
            arguments: arguments.into(),
            block: None,
        }
    }
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The contract, as the option `--frames` has it.
    pub frames: String,
    /// The store, as the option `--store` has it.
    pub store: String,
    /// What it does, in order.
    pub operations: Vec<Operation>,
}

/// The error of a text that is not a program.
#[derive(Debug, thiserror::Error)]
#[error("invalid program, line {line}: {why}")]
pub struct Invalid {
    line: usize,
    why: &'static str,
}

impl Program {
    /// Reads the text of a program.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut program = Self {
            frames: "4M".into(),
            store: "ram:256M".into(),
            operations: Vec::new(),
        };
        // The blocks that are open, innermost last.
        let mut open: Vec<Vec<Operation>> = vec![Vec::new()];
        for (n, line) in text.lines().enumerate() {
            let invalid = |why| Invalid { line: n + 1, why };
            let mut words = line.split_whitespace();
            match words.next() {
                None => continue,
                Some("#") => {
                    if let (Some("frames"), Some(frames), Some("store"), Some(store)) =
                        (words.next(), words.next(), words.next(), words.next())
                    {
                        (program.frames, program.store) = (frames.into(), store.into());
                    }
                }
                Some("end") => {
                    let block = open.pop().filter(|_| !open.is_empty());
                    let block = block.ok_or(invalid("an end without a block"))?;
                    let opener = open.last_mut().and_then(|around| around.last_mut());
                    opener.expect("a block follows its operation").block = Some(block);
                }
                Some(name) => {
                    let arguments = words
                        .map(|word| word.parse().map_err(|_| invalid("expected numbers")))
                        .collect::<Result<_, _>>()?;
                    let operation = Operation {
                        name: name.into(),
                        arguments,
                        block: None,
                    };
                    open.last_mut().expect("never empty").push(operation);
                    if BLOCKS.contains(&name) {
                        open.push(Vec::new());
                    }
                }
            }
        }
        match (open.pop(), open.is_empty()) {
            (Some(operations), true) => program.operations = operations,
            _ => {
                return Err(Invalid {
                    line: text.lines().count(),
                    why: "a block without its end",
                });
            }
        }
        Ok(program)
    }

    /// Operations in all, those in blocks included.
    pub fn len(&self) -> usize {
        fn count(operations: &[Operation]) -> usize {
            operations
                .iter()
                .map(|o| 1 + o.block.as_deref().map_or(0, count))
                .sum()
        }
        count(&self.operations)
    }

    /// Returns true if it has no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write(f: &mut fmt::Formatter<'_>, operations: &[Operation]) -> fmt::Result {
            for operation in operations {
                write!(f, "{}", operation.name)?;
                for argument in &operation.arguments {
                    write!(f, " {argument}")?;
                }
                writeln!(f)?;
                if let Some(block) = &operation.block {
                    write(f, block)?;
                    writeln!(f, "end")?;
                }
            }
            Ok(())
        }
        writeln!(f, "# frames {} store {}", self.frames, self.store)?;
        write(f, &self.operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_as_it_was_written() {
        let text = "# frames 8M store ram:1G\nmap 1 2 3 0 0 0\nfork_child 0\nsum 1 0 2\n\
                    thread 1\nend\nend\nsum_all\n";
        let program = Program::parse(text).expect("a program");
        assert_eq!(program.to_string(), text);
        assert_eq!(program.len(), 5);
    }

    #[test]
    fn a_block_that_is_not_closed_is_refused() {
        assert!(Program::parse("fork_child 0\nsum_all\n").is_err());
        assert!(Program::parse("end\n").is_err());
        assert!(Program::parse("sum x\n").is_err());
    }

    #[test]
    fn the_interpreter_opens_a_block_at_the_same_operations() {
        let table = include_str!("../interpreter/operations.h");
        let blocks: Vec<&str> = table
            .lines()
            .filter_map(|line| line.strip_prefix("BLOCK(")?.split(',').next())
            .collect();
        assert_eq!(blocks, BLOCKS);
    }
}
