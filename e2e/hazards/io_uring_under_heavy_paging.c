/* io_uring with buffers that are paged out, direct and buffered, many in flight: the
 * kernel's workers take the faults, and the device writes while the pager evicts. */
#include "ring.h"

enum { BLOCK = 8 * 4096, DEPTH = 32 };

static void pass(struct ring *r, int fd, int op, char *memory, size_t blocks)
{
    size_t next = 0, done = 0;
    unsigned flying = 0;
    while (done < blocks) {
        unsigned added = 0;
        while (flying < DEPTH && next < blocks) {
            size_t b = (next * 13) % blocks;
            ring_put(r, op, fd, memory + b * BLOCK, BLOCK, b * BLOCK, 0, b);
            next++, added++, flying++;
        }
        ring_enter(r, added, 1);
        ring_take(r, BLOCK);
        done++, flying--;
    }
}

int main(void)
{
    struct ring ring;
    if (!ring_open(&ring, DEPTH)) {
        fprintf(stderr, "no io_uring here\n");
        return 77;
    }
    size_t blocks = hazard_bytes() / 4 / BLOCK;
    while (blocks % 13 == 0)
        blocks--;
    size_t n = blocks * BLOCK;
    int direct = direct_file(n);
    FILE *buffered = tmpfile();
    char *from = map_private(n), *into = map_private(n);
    struct churn churn[2];
    churn_start(churn, 2);
    for (int round = 0; round < 6; round++) {
        int fd = round % 2 && direct >= 0 ? direct : fileno(buffered);
        fill(from, n, round);
        pass(&ring, fd, IORING_OP_WRITE, from, blocks);
        fill(into, n, ~(uint64_t)round);
        pass(&ring, fd, IORING_OP_READ, into, blocks);
        CHECK(holds(into, n, round));
        CHECK(holds(from, n, round));
    }
    churn_stop(churn, 2);
    return 0;
}
