/* mremap of memory that a device holds: the buffers registered with an io_uring are those
 * very pages wherever they are mapped, so what the device writes is seen at the new place,
 * and what the program writes there is what the device reads. Locked memory moves, too. */
#include "ring.h"

enum { BUFFER = 64 * 4096 };

int main(void)
{
    alarm(200);
    struct ring ring;
    if (!ring_open(&ring, 8)) {
        fprintf(stderr, "no io_uring here\n");
        return 77;
    }
    FILE *file = tmpfile();
    CHECK(file);
    int fd = fileno(file);
    char *p = map_private(4 * BUFFER);
    fill(p, 4 * BUFFER, 1);
    push_out();
    struct iovec v = {p + BUFFER, BUFFER};
    int done = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &v, 1);
    if (done < 0 && errno == ENOMEM) {
        fprintf(stderr, "RLIMIT_MEMLOCK is too small for this\n");
        return 77;
    }
    CHECK(done == 0);
    struct churn churn[1];
    churn_start(churn, 1);
    for (uint64_t round = 0; round < 6; round++) {
        char *was = p;
        p = mremap(p, 4 * BUFFER, 4 * BUFFER, MREMAP_MAYMOVE | MREMAP_FIXED, map_private(5 * BUFFER));
        CHECK(p != MAP_FAILED && p != was);
        if (round == 0)
            CHECK(holds(p, 4 * BUFFER, 1));
        push_out();
        /* The device reads what the program wrote at the new place. */
        fill(p + BUFFER, BUFFER, 10 + round);
        ring_put(&ring, IORING_OP_WRITE_FIXED, fd, v.iov_base, BUFFER, 0, 0, 1);
        ring_enter(&ring, 1, 1);
        ring_take(&ring, BUFFER);
        static char back[BUFFER];
        CHECK(pread(fd, back, BUFFER, 0) == BUFFER);
        CHECK(holds(back, BUFFER, 10 + round));
        /* And the program reads there what the device wrote. */
        fill(back, BUFFER, 20 + round);
        CHECK(pwrite(fd, back, BUFFER, 0) == BUFFER);
        ring_put(&ring, IORING_OP_READ_FIXED, fd, v.iov_base, BUFFER, 0, 0, 2);
        ring_enter(&ring, 1, 1);
        ring_take(&ring, BUFFER);
        CHECK(holds(p + BUFFER, BUFFER, 20 + round));
        for (size_t i = 0; i < BUFFER / 8; i += 61)
            CHECK(((uint64_t *)p)[i] == word_at(1, i));
    }
    CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
    push_out();
    CHECK(holds(p + BUFFER, BUFFER, 25));
    /* Locked memory, larger than before. */
    char *locked = map_private(16 * PAGE);
    fill(locked, 16 * PAGE, 3);
    CHECK(mlock(locked, 16 * PAGE) == 0);
    locked = mremap(locked, 16 * PAGE, 20 * PAGE, MREMAP_MAYMOVE);
    CHECK(locked != MAP_FAILED);
    push_out();
    CHECK(holds(locked, 16 * PAGE, 3) && all_zero(locked + 16 * PAGE, 4 * PAGE));
    CHECK(munlock(locked, 20 * PAGE) == 0);
    churn_stop(churn, 1);
    return 0;
}
