//! Writes a program as one file of C that needs nothing else: the interpreter's
//! operations, and a `main` that calls them in order.

use crate::interpreter::PARTS;
use crate::program::{Operation, Program};
use std::fmt::Write as _;

/// The C source of a program. Its log goes to the file that its second argument names,
/// as the interpreter's, so the same harness runs it; without one, to standard output.
pub fn source(program: &Program) -> String {
    let mut text = format!(
        "/* cc -O1 -g -pthread THIS.c && ./a.out > without\n\
         \x20* selfpage run --frames {} --store {} -- ./a.out > under; diff without under */\n",
        program.frames, program.store
    );
    for part in PARTS {
        text.push_str(part);
        text.push('\n');
    }
    text.push_str(
        "#define DO(name, ...) do { begin_operation(#name \" \" #__VA_ARGS__); name(__VA_ARGS__); \
         end_operation(); } while (0)\n\
         #define PART(n) (&(struct block){part_##n, n, 0})\n\n",
    );
    let mut parts = Vec::new();
    let body = body(&program.operations, &mut parts);
    let mut names = String::from("NULL");
    for (n, part) in parts.iter().enumerate() {
        text.push_str(part);
        text.push('\n');
        let _ = write!(names, ", part_{}", n + 1);
    }
    let _ = write!(
        text,
        "static void (*parts[])(const struct block *) = {{{names}}};\n\n\
         int main(int count, char **words)\n{{\n\
         \x20   begin_program(count, words);\n\
         \x20   if (count == 5) {{\n        parts[atoi(words[4])](NULL);\n        return 0;\n    }}\n\
         {body}    atomic_store(&pressure_stop, 1);\n    return 0;\n}}\n"
    );
    text
}

/// The statements of operations; a block becomes a function of its own in `parts`.
fn body(operations: &[Operation], parts: &mut Vec<String>) -> String {
    let mut text = String::new();
    for operation in operations {
        let mut arguments: Vec<String> = operation.arguments.iter().map(i64::to_string).collect();
        if let Some(block) = &operation.block {
            let inside = body(block, parts);
            let n = parts.len() + 1;
            parts.push(format!(
                "static void part_{n}(const struct block *block)\n{{\n    (void)block;\n{inside}}}\n"
            ));
            arguments.insert(0, format!("PART({n})"));
        }
        let comma = if arguments.is_empty() { "" } else { ", " };
        let arguments = arguments.join(", ");
        let _ = writeln!(text, "    DO({}{comma}{arguments});", operation.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_c_calls_its_operations_in_order() {
        let text = "map 1 2 3 0 0 0\nfork_child 0\nsum 1 0 2\nend\nsum_all\n";
        let source = source(&Program::parse(text).expect("a program"));
        let main = source.split("int main").nth(1).expect("a main");
        let calls: Vec<&str> = main.lines().filter(|l| l.contains("DO(")).collect();
        assert_eq!(
            calls,
            [
                "    DO(map, 1, 2, 3, 0, 0, 0);",
                "    DO(fork_child, PART(1), 0);",
                "    DO(sum_all);"
            ]
        );
        assert!(source.contains("    DO(sum, 1, 0, 2);"));
    }
}
