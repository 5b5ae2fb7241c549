//! The arguments of each operation.

use super::*;

impl Drawing {
    pub(super) fn arguments(&mut self, kind: &str, frames: i64) -> Vec<i64> {
        let place = [self.region(), self.page(), self.pages()];
        if let Some(arguments) = self.mapping_arguments(kind, place) {
            return arguments;
        }
        self.content_arguments(kind, place, frames)
    }

    /// The arguments of an operation on mappings; none for any other.
    fn mapping_arguments(
        &mut self,
        kind: &str,
        [region, page, pages]: [i64; 3],
    ) -> Option<Vec<i64>> {
        Some(match kind {
            "map" => vec![
                self.random.between(1, 7),
                pages,
                self.access(),
                self.kind(),
                self.flags() & 55,
                self.random.between(0, 63),
            ],
            "map_fixed" => vec![
                region,
                page,
                pages,
                self.access(),
                self.kind(),
                self.flags(),
                self.random.between(0, 63),
            ],
            "map_hint" => vec![page, pages, self.access(), self.kind()],
            "unmap" => vec![region, page, pages],
            "unmap_region" => vec![match region {
                0 if !self.random.one_in(4) => 1,
                region => region,
            }],
            "cut" => vec![region, page],
            "move_fixed" => vec![
                region,
                page,
                pages,
                self.region(),
                self.page(),
                self.pages(),
                self.random.between(0, 1),
            ],
            "resize" => vec![page, pages, self.pages()],
            "resize_region" => vec![region, self.pages()],
            "remap_pages" => vec![region, page, pages, self.page()],
            "protect" => vec![region, page, pages, self.access()],
            "advise" => {
                let advice = match self.random.one_in(6) {
                    true => self.random.of(&MORE_ADVICE),
                    false => self.random.of(&ADVICE),
                };
                vec![region, page, pages, advice]
            }
            "lock" => vec![region, page, pages, self.random.between(0, 2)],
            "lock_all" => vec![self.random.of(&LOCK_ALL)],
            "resident" => vec![region, page, pages, i64::from(self.random.one_in(8))],
            "listed" => vec![region, page, pages, self.random.between(0, 1)],
            "guard" => vec![region, page, pages],
            "protect_by_key" => vec![region, page, pages, self.random.between(0, 1)],
            "sync_pages" => vec![region, page, pages, self.random.between(0, 7)],
            _ => return None,
        })
    }

    /// The arguments of an operation on contents, or of one that has none.
    fn content_arguments(
        &mut self,
        kind: &str,
        [region, page, pages]: [i64; 3],
        frames: i64,
    ) -> Vec<i64> {
        match kind {
            "stamp" => vec![region, page, pages, self.seed()],
            "poke" => vec![region, page, pages, self.random.between(0, 6), self.seed()],
            "sum" => vec![region, page, pages],
            "copy" => vec![region, page, pages, self.region(), self.page()],
            "churn" => vec![frames + frames / 2],
            "duplicate" => vec![region, page, pages, self.random.between(1, 7)],
            "advise_process" => {
                let advice = self.random.of(&[4, 3, 20, 21, 0, 18, 14]);
                vec![region, page, pages, advice]
            }
            "label" => vec![region, page, pages, self.random.between(0, 1)],
            "resize_file" => vec![self.random.between(0, 3), self.random.between(0, 64)],
            "file_io" => vec![
                region,
                page,
                pages,
                self.random.between(0, 3),
                self.random.between(0, 63),
                self.random.between(0, 7),
            ],
            "pipe_io" => vec![
                region,
                page,
                pages,
                self.region(),
                self.page(),
                self.random.between(0, 4),
            ],
            "child_memory" => vec![
                region,
                page,
                pages,
                self.region(),
                self.page(),
                self.random.between(0, 1),
            ],
            "trace_child" => vec![region, page, self.random.between(0, 1)],
            "ring_io" => vec![
                region,
                page,
                pages,
                self.random.between(0, 55),
                self.random.between(0, 7),
            ],
            "futex_word" => vec![region, page],
            "map_segment" => vec![page, pages, self.seed(), 0],
            "own_faults" => vec![pages, self.seed()],
            "heap" => {
                let size = match self.random.between(0, 3) {
                    0 => self.random.between(0, 200),
                    1 => self.random.between(0, 20_000),
                    _ => self.random.between(0, 900_000),
                };
                let block = self.random.between(0, 31);
                vec![block, size, self.random.between(0, 2), self.seed()]
            }
            "program_break" => vec![pages, self.seed()],
            "barrier" => vec![region, page, pages, self.seed(), self.random.between(0, 1)],
            "robust_mutex" => vec![region, page, self.random.between(0, 3)],
            "stir" => vec![self.random.between(0, 6)],
            _ => Vec::new(),
        }
    }
}
