/* Registered buffers stay pinned for as long as they are registered: the device writes
 * into those very pages, and so must the program read from them, however hard the
 * pager works in between. */
#include "ring.h"
#include <sys/resource.h>

enum { BLOCK = 16 * 4096, BUFFERS = 16 };

int main(void)
{
    struct ring ring;
    if (!ring_open(&ring, 32)) {
        fprintf(stderr, "no io_uring here\n");
        return 77;
    }
    size_t n = BUFFERS * BLOCK;
    int direct = direct_file(n);
    FILE *buffered = tmpfile();
    char *heap;
    CHECK(posix_memalign((void **)&heap, PAGE, n / 2) == 0);
    char *map = map_private(n / 2);
    struct iovec v[BUFFERS];
    for (int i = 0; i < BUFFERS; i++)
        v[i] = (struct iovec){(i % 2 ? heap : map) + (size_t)(i / 2) * BLOCK, BLOCK};
    fill(map, n / 2, 1);
    push_out();
    int done = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, v, BUFFERS);
    if (done < 0 && errno == ENOMEM) {
        fprintf(stderr, "RLIMIT_MEMLOCK is too small for this\n");
        return 77;
    }
    CHECK(done == 0);
    struct churn churn[2];
    churn_start(churn, 2);
    char *plain = map_private(BLOCK);
    double end = now() + 4;
    for (uint64_t round = 0; now() < end || round < 4; round++) {
        int fd = round % 2 && direct >= 0 ? direct : fileno(buffered);
        for (int i = 0; i < BUFFERS; i++) {
            fill(v[i].iov_base, BLOCK, round * 100 + i);
            ring_put(&ring, IORING_OP_WRITE_FIXED, fd, v[i].iov_base, BLOCK, (off_t)i * BLOCK, i, i);
        }
        if (round % 4 == 0)
            push_out();
        ring_enter(&ring, BUFFERS, BUFFERS);
        for (int i = 0; i < BUFFERS; i++)
            ring_take(&ring, BLOCK);
        /* Each block back into the next buffer, while the program reads another. */
        for (int i = 0; i < BUFFERS; i++) {
            int to = (i + 1) % BUFFERS;
            memset(v[to].iov_base, 0xee, BLOCK);
        }
        for (int i = 0; i < BUFFERS; i++) {
            int to = (i + 1) % BUFFERS;
            ring_put(&ring, IORING_OP_READ_FIXED, fd, v[to].iov_base, BLOCK, (off_t)i * BLOCK, to, i);
        }
        ring_enter(&ring, BUFFERS, BUFFERS);
        for (int i = 0; i < BUFFERS; i++)
            ring_take(&ring, BLOCK);
        if (round % 4 == 1)
            push_out();
        for (int i = 0; i < BUFFERS; i++)
            CHECK(holds(v[(i + 1) % BUFFERS].iov_base, BLOCK, round * 100 + i));
        /* And what the device got is what the program wrote. */
        CHECK(pread(fd, plain, BLOCK, 5 * BLOCK) == BLOCK);
        CHECK(holds(plain, BLOCK, round * 100 + 5));
    }
    churn_stop(churn, 2);
    CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
    push_out();
    return 0;
}
